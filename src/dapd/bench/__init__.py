"""Time and memory of forward passes, steps and whole generations, beside the floor that the arithmetic sets."""
