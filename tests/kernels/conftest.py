"""Triton's interpreter, made faster: at every call of one function of a kernel by another it puts its own functions in
the place of the language's anew, which takes a third of the time. What a call has put is never taken back."""

import os

if os.environ.get("TRITON_INTERPRET", "0") == "1":
    from triton import language
    from triton.runtime import interpreter

    def call(self, *args, **kwargs):
        if language.core.is_builtin(language.core.load):
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*args, **kwargs)

    interpreter.InterpretedFunction.__call__ = call
