"""These tests run in a process of their own, under Triton's interpreter: see test_interpreted.py one level up."""

import os

if os.environ.get("TRITON_INTERPRET", "0") != "1":
    collect_ignore_glob = ["test_*.py"]
