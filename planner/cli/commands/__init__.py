"""The commands, one a module: `configure` adds its options, `run` answers."""
