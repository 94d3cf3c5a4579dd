"""What passes between the program and its user: settings as text, files, tables, words, and the user's own code."""
