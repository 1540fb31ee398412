"""What encodings cost: time and memory of training and evaluation, measured side by side on one machine."""
