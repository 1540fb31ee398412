"""Positional encodings: one paper a file, one YAML in conf/encoding each, and nothing else to register."""
