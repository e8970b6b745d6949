"""What the `sita` command can do: a file a command. Each imports what it runs when it runs."""
