"""Which positions the tokens of a batch are said to have: `base` says what a remap is, every other file holds one."""
