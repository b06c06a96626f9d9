"""Hold the same four fifths of the connections at zero through every optimizer step, and go on learning.

python examples/question_2_hold_connections_at_zero.py
"""

import torch
from torch import nn

import secateur

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=1e-4)
data = torch.randn(256, 32)

masks = secateur.prune_(model, optimizer, sparsity=0.8)  # once, instead of multiplying after every step
print(masks)
for step in range(301):
    optimizer.zero_grad()
    loss = (model(data) - data).square().mean()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        zeros = sum(int((model.get_parameter(name) == 0).sum()) for name in masks)
        print(f"step {step:3}: loss {loss.item():.3f}, {zeros} weights are zero")
