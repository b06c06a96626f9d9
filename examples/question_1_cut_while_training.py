"""Cut a Linear's inputs from 100 to 90 between two backward passes; momentum, gradient and average follow.

python examples/question_1_cut_while_training.py
"""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import secateur

torch.manual_seed(0)
layer = nn.Linear(100, 10)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.01, momentum=0.9)
average = AveragedModel(layer)

loss = (5 - layer(torch.ones(100))).square().mean()
loss.backward()
optimizer.step()
average.update_parameters(layer)
print(f"before: {layer}, loss {loss.item():.3f}")

# `loss` is still alive and holds the old graph. Slicing layer.weight.data would make the next backward raise.
secateur.resize_(layer, "weight", dim=1, keep=range(90), optimizer=optimizer, ema=average)

for _ in range(20):
    optimizer.zero_grad()
    loss = (5 - layer(torch.ones(90))).square().mean()
    loss.backward()
    optimizer.step()
    average.update_parameters(layer)
momentum = optimizer.state[layer.weight]["momentum_buffer"]
print(f"after:  {layer}, loss {loss.item():.3f}, momentum {tuple(momentum.shape)}, average {average.module}")
