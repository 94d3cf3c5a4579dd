"""Figures for print: the paper's, from traces and results."""
