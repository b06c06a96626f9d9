"""Recurrent layers where they run as one op; elsewhere they arrive taken apart."""

from __future__ import annotations

from torch import Tensor

from secateur.graph.call import Call
from secateur.graph.labels import Dims, size_of
from secateur.graph.rules._table import rule

__all__: list[str] = []


@rule("aten.mkldnn_rnn_layer")
def rnn_layer(call: Call) -> list[Dims]:
    """Input (t, b, i), weights (g · h, i) and (g · h, h), biases (g · h), states (1, b, h) -> (t, b, h) and states.

    Rows of the weights are (gate, unit): a unit goes from all gates together.
    """
    labels = call.labels
    source, from_input, from_state, *biases = (call.dims(t) for t in call.args[:5] if isinstance(t, Tensor))
    states = [call.dims(call.arg(name)) for name in ("hx_", "cx_")]
    hidden = states[0][-1]
    gates = size_of(from_state[0]) // size_of(hidden)
    call.equal(source[-1], from_input[1])
    call.equal(from_state[1], hidden)
    for rows in (from_input[0], from_state[0], *(bias[0] for bias in biases)):
        gate, unit = labels.split(labels.merge(rows), gates)
        call.block((gate,), "it is a gate of a recurrent layer")
        call.equal(labels.tidy((unit,)), hidden)
    for state in states:
        call.equal(state[-1], hidden)
        call.equal(state[-2], source[1])
    call.capture.multiplied(*source[:2], *from_input)
    call.capture.multiplied(*source[:2], *from_state)
    final = [(*labels.fixed_dims(out.shape[:-2]), source[1], hidden) for out in call.outputs[1:3]]
    rest = [labels.fixed_dims(out.shape) for out in call.outputs[3:]]
    return [(*source[:2], hidden), *final, *rest]
