"""The interface between the program and its user: settings as text, files, tables, wording, and the user's own code."""
