"""The bound to which a critic's weights are clamped by hand, on the way to its second update.

kind: drift
class: code-change
step: 2
instead_of: bound = 0.05
"""

import torch

critic = torch.nn.Linear(4, 1)
model = torch.nn.Linear(2, 4)
of_critic = torch.optim.SGD(critic.parameters(), lr=0.01)
of_model = torch.optim.SGD(model.parameters(), lr=0.01)
noise = torch.linspace(0, 1, 16).reshape(8, 2)
bound = 0.04  # planted
for _ in range(6):
    of_critic.zero_grad()
    (critic(model(noise).detach()).mean() - critic(torch.ones(8, 4)).mean()).backward()
    of_critic.step()
    for weight in critic.parameters():
        weight.data.clamp_(-bound, bound)
    of_model.zero_grad()
    (-critic(model(noise)).mean()).backward()
    of_model.step()
