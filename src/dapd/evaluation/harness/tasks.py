"""lm-eval's tasks by name: from its own files, with the data from the hubs or from a folder."""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapd.errors import DapdError, missing_extra, unknown
from dapd.evaluation.harness.code import local_code_eval
from dapd.evaluation.harness.data import GSM8K, HUMANEVAL, IFEVAL, MATH500, MBPP, LocalData
from dapd.evaluation.harness.options import EvalOptions

FEWSHOT_SEED = 1234
"""lm-eval's own seed, from which the examples in a prompt are drawn."""


@dataclass(frozen=True)
class Known:
    """A task of lm-eval whose data can also be read from a folder."""

    file: str
    """lm-eval's file, below its folder of tasks."""
    data: LocalData
    metric: str
    """Name of the metric that stands for the task."""


KNOWN = {
    "gsm8k": Known("gsm8k/gsm8k.yaml", GSM8K, "exact_match,flexible-extract"),
    "gsm8k_cot": Known("gsm8k/gsm8k-cot.yaml", GSM8K, "exact_match,flexible-extract"),
    "humaneval": Known("humaneval/humaneval.yaml", HUMANEVAL, "pass@1,create_test"),
    "humaneval_instruct": Known("humaneval/humaneval_instruct.yaml", HUMANEVAL, "pass@1,create_test"),
    "mbpp": Known("mbpp/mbpp.yaml", MBPP, "pass_at_1,none"),
    "mbpp_instruct": Known("mbpp/mbpp_instruct.yaml", MBPP, "pass_at_1,extract_code"),
    "minerva_math500": Known("minerva_math/minerva_math500.yaml", MATH500, "math_verify,none"),
    "hendrycks_math500": Known("hendrycks_math/hendrycks_math500.yaml", MATH500, "exact_match,none"),
    "ifeval": Known("ifeval/ifeval.yaml", IFEVAL, "prompt_level_strict_acc,none"),
}


def load_tasks(names: Sequence[str], options: EvalOptions) -> dict[str, Any]:
    """The tasks, ready to be asked; mistakes are reported before any data are read."""
    if not names:
        raise DapdError("no tasks: name at least one, for instance gsm8k")
    configs = {name: _config(name, options) for name in dict.fromkeys(names)}
    with contextlib.suppress(ImportError):
        import langdetect

        # It draws random numbers: without a seed the same answer scores differently from run to run.
        langdetect.DetectorFactory.seed = 0
    return {name: _build(name, config, options) for name, config in configs.items()}


def require_lm_eval() -> None:
    if importlib.util.find_spec("lm_eval") is None:
        raise missing_extra("lm-eval", "eval", "evaluation")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Inside, lm-eval and its data library show no progress bars and log nothing below an error."""
    import datasets
    import lm_eval.api.task

    logger = logging.getLogger("lm_eval")
    bar = lm_eval.api.task.tqdm
    shown = datasets.is_progress_bar_enabled()
    level = logger.level

    def plain(items: Iterable[Any], **_: Any) -> Iterable[Any]:
        return items

    logger.setLevel(logging.ERROR)
    lm_eval.api.task.tqdm = plain
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        logger.setLevel(level)
        lm_eval.api.task.tqdm = bar
        if shown:
            datasets.enable_progress_bars()


def _config(name: str, options: EvalOptions) -> dict[str, Any]:
    """Read the task's file. Whether the task runs code is checked before any function that it names is imported."""
    from lm_eval.tasks._yaml_loader import load_yaml

    path = _file(name, options.data_dir)
    runs_code = load_yaml(path, resolve_func=False).get("unsafe_code")
    if runs_code and not options.confirm_unsafe_code:
        raise DapdError(
            f"the task {name} runs code that the model writes; confirm that with --confirm-run-unsafe-code "
            "(best inside a container)"
        )
    try:
        with local_code_eval() if runs_code else contextlib.nullcontext():
            config: dict[str, Any] = load_yaml(path, resolve_func=True)
    except (ImportError, AssertionError) as error:
        raise DapdError(f"the task {name} cannot be loaded: {error}; pip install 'dapd[eval]'") from None
    return config


def _file(name: str, data_dir: Path | None) -> Path:
    import lm_eval.tasks

    root = Path(lm_eval.tasks.__file__).parent
    if name in KNOWN:
        return root / KNOWN[name].file
    if data_dir is not None:
        raise unknown("task with local files", name, KNOWN)
    # lm-eval's index takes seconds to build: only names that are not in our own list need it.
    manager = lm_eval.tasks.TaskManager()
    if name not in manager.all_subtasks:
        if name in manager.all_groups or name in manager.all_tags:
            raise DapdError(f"{name} is a group of tasks; name its tasks one by one")
        raise _unknown_task(name, manager.all_subtasks)
    path = manager.task_index[name].yaml_path
    if path is None:
        raise DapdError(f"the task {name} has no file of its own in lm-eval and cannot be loaded here")
    return Path(path)


def _unknown_task(name: str, names: Sequence[str]) -> DapdError:
    """The error for an unknown task. It names only the nearest of lm-eval's ten thousand tasks."""
    near = difflib.get_close_matches(name, KNOWN, n=1) or difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return DapdError(f"unknown task {name!r}; {hint}with local files: {', '.join(KNOWN)}; others: lm-eval ls tasks")


def _build(name: str, config: dict[str, Any], options: EvalOptions) -> Any:
    from lm_eval.api.task import ConfigurableTask

    config = {key: value for key, value in config.items() if key not in ("tag", "group", "task_list")}
    if options.data_dir is not None:
        splits = _splits(KNOWN[name].data.read(options.data_dir))
        config |= {"dataset_path": None, "dataset_name": None, "custom_dataset": lambda **_: splits}
    try:
        task = ConfigurableTask(config=config)
    except DapdError:
        raise
    except Exception as error:  # the hub, its cache and the network raise errors of many kinds
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DapdError(f"cannot get the data of {name}: {reason}; --data-dir reads them from a folder") from error
    shots = task.get_config("num_fewshot")
    # As in lm-eval, a task that is made for prompts without examples stays so, whatever is asked for.
    task.set_config("num_fewshot", shots or 0 if options.shots is None or shots == 0 else options.shots)
    task.set_fewshot_seed(seed=FEWSHOT_SEED)
    return task


def _splits(rows: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    import datasets

    return {split: datasets.Dataset.from_list(part) for split, part in rows.items()}


def main_metric(task: str, metrics: dict[str, float]) -> str:
    """Name of the metric that stands for a task: that of `KNOWN`, else lm-eval's first."""
    chosen = KNOWN[task].metric if task in KNOWN else ""
    return chosen if chosen in metrics else next(iter(metrics), "")
