"""`python -m dapd` is the `dapd` command."""

import gc

from dapd.cli import main

if __name__ == "__main__":
    gc.disable()  # `dapd.cli.main` enables it when all commands are loaded
    main()
