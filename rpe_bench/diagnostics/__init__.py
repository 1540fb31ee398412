"""What goes on inside a trained model, beyond what its scores say."""
