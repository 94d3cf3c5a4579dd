"""Triton's interpreter, made faster: part of its time goes to what shows nothing here.

- At every call of one function of a kernel by another it puts its own functions in the place of the language's anew.
  What a call has put is never taken back. Those functions look through their arguments for one to leave out.
- At every operation it makes the table of numpy's dtypes anew.
- Every sum and product of integers is made once more in 64 bits and compared with what its type holds, for an assertion
  that is off unless the option `debug` is on.
"""

import os

if os.environ.get("TRITON_INTERPRET", "0") == "1":
    from dataclasses import replace
    from functools import cache

    from triton import language
    from triton.runtime import interpreter

    core = language.core

    def call(self, *args, **kwargs):
        if core.is_builtin(core.load):
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*args, **kwargs)

    plain = interpreter._get_np_dtype
    kept = cache(plain)

    def numpy_dtype(kind):
        of = kind.scalar  # of a block: that of its elements
        return plain(of) if isinstance(of, core.pointer_type) else kept(of)

    def put(place, name, member, builder, scope):
        def function(*args, **kwargs):
            kwargs["_semantic"] = interpreter.interpreter_semantic
            return member(*args, **kwargs)

        scope.set_attr(place, name, function)

    interpreter.InterpretedFunction.__call__ = call
    interpreter._patch_attr = put
    interpreter._get_np_dtype = numpy_dtype

    builder = interpreter.interpreter_builder
    if not builder.options.debug:
        builder.options = replace(builder.options, sanitize_overflow=False)
