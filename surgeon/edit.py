"""The verbs of editing in one place; ``graphdoc.surgeon`` exports them, ``graphdoc edit`` offers them.

Every verb takes an ``onnx_ir.Model`` first and changes it in place, unless it says that it returns another.
Values and nodes are given by name or as objects (surgeon/edit_find.py says what a name means). A verb
checks before it
edits: when it raises, the model is as it was. :func:`check` looks at the whole model.
"""

from graphdoc.surgeon.edit_clean import cleanup as cleanup
from graphdoc.surgeon.edit_clean import fold as fold
from graphdoc.surgeon.edit_clean import set_ir_version as set_ir_version
from graphdoc.surgeon.edit_clean import set_metadata as set_metadata
from graphdoc.surgeon.edit_clean import strip as strip
from graphdoc.surgeon.edit_clean import toposort as toposort
from graphdoc.surgeon.edit_extract import copy_model as copy_model
from graphdoc.surgeon.edit_extract import extract as extract
from graphdoc.surgeon.edit_functions import outline as outline
from graphdoc.surgeon.edit_graph import add_node as add_node
from graphdoc.surgeon.edit_graph import bypass as bypass
from graphdoc.surgeon.edit_graph import insert as insert
from graphdoc.surgeon.edit_graph import remove_node as remove_node
from graphdoc.surgeon.edit_graph import replace as replace
from graphdoc.surgeon.edit_graph import replace_node as replace_node
from graphdoc.surgeon.edit_graph import set_attribute as set_attribute
from graphdoc.surgeon.edit_interface import add_input as add_input
from graphdoc.surgeon.edit_interface import add_output as add_output
from graphdoc.surgeon.edit_interface import remove_input as remove_input
from graphdoc.surgeon.edit_interface import remove_output as remove_output
from graphdoc.surgeon.edit_interface import reorder as reorder
from graphdoc.surgeon.edit_interface import set_dtype as set_dtype
from graphdoc.surgeon.edit_interface import set_initializer as set_initializer
from graphdoc.surgeon.edit_interface import to_initializer as to_initializer
from graphdoc.surgeon.edit_interface import to_input as to_input
from graphdoc.surgeon.edit_interface import weight as weight
from graphdoc.surgeon.edit_merge import chain as chain
from graphdoc.surgeon.edit_merge import merge as merge
from graphdoc.surgeon.edit_names import add_prefix as add_prefix
from graphdoc.surgeon.edit_names import rename_dim as rename_dim
from graphdoc.surgeon.edit_names import rename_node as rename_node
from graphdoc.surgeon.edit_names import rename_values as rename_values
from graphdoc.surgeon.edit_opset import convert_opset as convert_opset
from graphdoc.surgeon.edit_script import run_script as run_script
from graphdoc.surgeon.edit_shapes import free as free
from graphdoc.surgeon.edit_shapes import freeze as freeze
from graphdoc.surgeon.edit_shapes import set_shape as set_shape
from graphdoc.surgeon.edit_types import check as check
