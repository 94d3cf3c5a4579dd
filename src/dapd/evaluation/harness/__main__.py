"""lm-eval's own command line with the model `dapd` in it.

python -m dapd.evaluation.harness run --model dapd --model_args pretrained=MODEL,strategy=dapd-staged --tasks gsm8k
"""

from __future__ import annotations

import sys

from dapd.errors import DapdError


def main() -> None:
    try:
        from lm_eval.__main__ import cli_evaluate

        import dapd.evaluation.harness.launcher  # noqa: F401  (registers the model)
    except ModuleNotFoundError as error:
        sys.exit(f"error: evaluation needs the package {error.name!r}: pip install 'dapd[eval]'")
    from dapd.evaluation.harness.code import local_code_eval

    try:
        # lm-eval itself asks for consent to running code; this only makes the code run in a process with limits.
        with local_code_eval():
            cli_evaluate()
    except DapdError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
