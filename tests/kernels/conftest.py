"""Triton's interpreter, made faster: part of its time goes to what shows nothing here.

- At every call of one function of a kernel by another it puts its own functions in the place of the language's anew.
  What a call has put is never taken back.
- At every operation it makes the table of numpy's dtypes anew.
"""

import os

if os.environ.get("TRITON_INTERPRET", "0") == "1":
    from functools import cache

    from triton import language
    from triton.runtime import interpreter

    def call(self, *args, **kwargs):
        if language.core.is_builtin(language.core.load):
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*args, **kwargs)

    plain = interpreter._get_np_dtype
    kept = cache(plain)

    def numpy_dtype(kind):
        of = kind.scalar  # of a block: that of its elements
        return plain(of) if isinstance(of, language.core.pointer_type) else kept(of)

    interpreter.InterpretedFunction.__call__ = call
    interpreter._get_np_dtype = numpy_dtype
