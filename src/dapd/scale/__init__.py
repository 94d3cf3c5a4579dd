"""More than one worker: many prompts offline, and evaluations, on several processes, GPUs or machines."""
