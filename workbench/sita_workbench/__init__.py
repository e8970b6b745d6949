"""What the `sita` command runs. Nothing else imports it, and it is not part of the library's public names."""
