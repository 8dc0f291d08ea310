"""The anbar command, one file per subcommand."""
