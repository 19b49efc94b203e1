"""Communication across ranks.

`calls` lists each call once, with its `arguments`, its process group (`groups`) and its size
(`message_size`). `matching` joins the calls of all members; `waits`, `clocks` and `bandwidth` follow from
it. `traffic`, `messages` and `exchanges` describe who sends how much to whom.
"""
