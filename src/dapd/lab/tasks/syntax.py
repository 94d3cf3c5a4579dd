"""The Python that the `code` task agrees to run, and the form in which it runs it.

Anything but the few constructs of the generator is refused before a process is started: imports, attributes other than
`append`, calls of anything but a handful of built-in functions, loops over anything but the argument. The programs that
remain cannot reach out of their process, and they end.
"""

from __future__ import annotations

import ast
import warnings

CALLS = ("sum", "len", "any", "all", "next")
"""Built-in functions that may be called."""

LARGEST = 99
"""Largest absolute value of a constant."""

NODES = (
    ast.arguments, ast.arg, ast.Assign, ast.AugAssign, ast.For, ast.If, ast.Return, ast.Continue, ast.Expr,
    ast.Name, ast.Load, ast.Store, ast.Constant, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Mod, ast.Pow,
    ast.UnaryOp, ast.Not, ast.USub, ast.BoolOp, ast.And, ast.Or, ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE,
    ast.Gt, ast.GtE, ast.Call, ast.ListComp, ast.GeneratorExp, ast.comprehension, ast.List, ast.IfExp,
    ast.Subscript, ast.Attribute,
)  # fmt: skip
"""Kinds of nodes that may occur; some of them only as `_fits` says."""


def normal_form(text: str, name: str) -> str | None:
    """The program with its function called `f` and its variables numbered; None for a program that is refused.

    Programs that differ in names alone have one normal form, so that they are run once.
    """
    try:
        with warnings.catch_warnings():
            # Python warns about the literals of some half-decoded programs.
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not _allowed(tree, name):
        return None
    return ast.unparse(_Renamed().visit(tree))


def _allowed(tree: ast.Module, name: str) -> bool:
    """Whether a program is one function of that name, with one argument, of allowed parts."""
    function = tree.body[0] if len(tree.body) == 1 else None
    if not isinstance(function, ast.FunctionDef) or function.name != name:
        return False
    argument = _only_argument(function)
    if argument is None or function.decorator_list or function.returns:
        return False
    inner = [node for node in ast.walk(function) if node is not function]
    names = [node for node in inner if isinstance(node, ast.Name)]
    taken = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    if taken & {argument, *CALLS} or any(node.id == name for node in names) or argument in CALLS:
        return False
    nested = [node for loop in inner if isinstance(loop, ast.For) for node in ast.walk(loop) if node is not loop]
    if any(isinstance(node, ast.For) for node in nested):
        return False
    return all(isinstance(node, NODES) and _fits(node, argument) for node in inner)


def _only_argument(function: ast.FunctionDef) -> str | None:
    """The name of a function's argument; None unless there is exactly one, without annotation or default."""
    own = function.args
    if own.posonlyargs or own.kwonlyargs or own.vararg or own.kwarg or own.defaults or len(own.args) != 1:
        return None
    return None if own.args[0].annotation else own.args[0].arg


def _fits(node: ast.AST, argument: str) -> bool:
    """Whether a node keeps the rules for nodes of its kind."""
    match node:
        case ast.Constant(value=value):
            small = isinstance(value, int) and abs(value) <= LARGEST
            return (value is None or small) and node.kind is None
        case ast.BinOp(op=ast.Pow(), right=right):
            return isinstance(right, ast.Constant) and right.value in (2, 3)
        case ast.Attribute(value=value, attr=attr):
            return attr == "append" and isinstance(value, ast.Name) and value.id != argument
        case ast.Call(func=func, args=args, keywords=keywords):
            named = isinstance(func, ast.Name) and func.id in CALLS
            return (named or isinstance(func, ast.Attribute)) and not keywords and len(args) in (1, 2)
        case ast.For(target=target, iter=source, orelse=orelse):
            # A loop over a list to which its body appends would not end.
            return (
                isinstance(target, ast.Name) and isinstance(source, ast.Name) and source.id == argument and not orelse
            )
        case ast.ListComp(generators=generators) | ast.GeneratorExp(generators=generators):
            return len(generators) == 1
        case ast.comprehension(target=target, iter=source):
            return isinstance(target, ast.Name) and isinstance(source, ast.Name) and not node.is_async
        case ast.Assign(targets=targets):
            return len(targets) == 1 and isinstance(targets[0], ast.Name)
        case ast.AugAssign(target=target, op=op):
            return isinstance(target, ast.Name) and isinstance(op, ast.Add)
        case ast.Subscript(slice=index):
            return isinstance(index, ast.Constant)
        case ast.Name(id=own):
            return not own.startswith("_")
    return True


class _Renamed(ast.NodeTransformer):
    """Calls the function `f` and its variables v0, v1, ... in the order in which they appear."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def new(self, name: str) -> str:
        return name if name in CALLS else self.names.setdefault(name, f"v{len(self.names)}")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.name = "f"
        self.generic_visit(node)
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.arg = self.new(node.arg)
        return node

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self.new(node.id)
        return node
