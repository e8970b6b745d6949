"""Run a `sita` command as a user types it, inside the test's process."""

from __future__ import annotations

from typer.testing import CliRunner

from sita_workbench import cli


def invoke(*arguments: object) -> str:
    """Return what the command printed; raise the error that it ended with."""
    result = CliRunner().invoke(cli.make_app(), [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout
