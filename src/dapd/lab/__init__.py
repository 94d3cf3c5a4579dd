"""The lab: a small world of tasks with known answers, and a small model that is trained on them."""
