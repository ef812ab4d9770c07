"""autoplan: an auto-parallel planner and simulator for training large models.

The floors, from the top: `cli` parses and renders; `workflow` chains the verbs and is the public
Python API; `search` finds plans; `simulate` and `runtime` execute one Program, in thought and with
torch; `lower` turns a Plan into a Program; `cost` prices it; `ops`, `boxing`, `pipeline` hold the
rules; `files` are the doors; `ir` the nouns. Imports go strictly downward.
"""

__version__ = "0.1.0"
