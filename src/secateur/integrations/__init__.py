"""Trainers: Lightning, transformers and Accelerate, each in a module of its own that is imported by its own name.

``secateur.integrations.lightning``, ``.transformers`` and ``.accelerate`` each have one name, ``Pruning``, which takes
the same methods; a method is called with the model and ``optimizer=…`` when training begins. Nothing of these
frameworks is imported before.

Files: attachment (the methods of one model, their steps and their state: what all three have in common); sizes (a model
made as small as a checkpoint's); files (that state in a folder); agreement (of several processes about their masks);
needed (what is not installed).
"""

__all__: list[str] = []
