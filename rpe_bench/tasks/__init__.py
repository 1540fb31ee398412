"""What is asked of an encoding: `base` says what a task is, and every other file holds one."""
