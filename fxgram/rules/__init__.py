"""Rules: the factored Jacobian of each operator with respect to a parameter among its arguments."""

from fxgram.rules import convolution, distances, linear, lookup, normalization, pointwise
from fxgram.rules.registry import find as find
from fxgram.rules.registry import registered as registered
from fxgram.rules.registry import rule as rule
from fxgram.rules.table import markdown_table as markdown_table

_FAMILIES = (convolution, distances, linear, lookup, normalization, pointwise)
