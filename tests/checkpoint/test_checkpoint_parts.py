from __future__ import annotations

from each_row import each_row

from gate.checkpoint.parts import MODEL, OPTIMIZER, OTHER, RANDOM, part_of

TENSORS = {
    "/optimizer{0.5}": OPTIMIZER,
    "/rng<0>/x.y": RANDOM,
    "/a.b{0.5}": MODEL,
    "/optimizer/a.b": OPTIMIZER,
    "/optim.a[0]": OPTIMIZER,
    # PyTorch's examples, and bare state dictionaries
    "/state_dict/layer1.0.conv1.weight": MODEL,
    "/best_acc1": OTHER,
    "/layer.weight": MODEL,
    "/random_projection.weight": MODEL,
    "/encoder/best/weight": MODEL,
    "/weight": MODEL,
    "": MODEL,
    "[3]": MODEL,
    # bare and oddly named optimizers
    "/state{0}/exp_avg": OPTIMIZER,
    "/state{0}/step": OPTIMIZER,
    "/adam_of_d/state{0}/exp_avg": OPTIMIZER,
    "/optim/state/layer.weight/exp_avg": OPTIMIZER,
    "/optimizer.state.layer.weight.exp_avg": OPTIMIZER,
    "/gen_optimizer/state{0}/exp_avg": OPTIMIZER,
    "/optimizerG/state{0}/exp_avg": OPTIMIZER,
    "/optD/mu": OPTIMIZER,
    "/model_optimizer/mu": OPTIMIZER,
    "/model/optimizer_net.weight": MODEL,
    # Lightning
    "/optimizer_states[0]/state{0}/exp_avg": OPTIMIZER,
    "/callbacks/EarlyStopping/best_score": OTHER,
    "/loops/fit_loop/x": OTHER,
    # timm
    "/state_dict_ema/conv.weight": MODEL,
    "/amp_scaler/scale": OTHER,
    "/optimizer/state{0}/momentum_buffer": OPTIMIZER,
    # DiT
    "/ema/blocks.0.weight": MODEL,
    "/opt/state{0}/exp_avg": OPTIMIZER,
    # adversaries, and what torch.Generator gives
    "/generator/main.0.weight": MODEL,
    "/discriminator/main.0.weight": MODEL,
    "/netG/main.0.weight": MODEL,
    "/generator_state_dict/main.0.weight": MODEL,
    "/generator": RANDOM,
    # random states
    "/rng_state": RANDOM,
    "/cuda_rng_state[0]": RANDOM,
    "/torch_random_state": RANDOM,
    "/dataloader/sampler/rng_state": RANDOM,
    "/state/rng[0]": RANDOM,
    "/RNG": RANDOM,
    "/model/random_features.weight": MODEL,
    # nested below a name of the script's own
    "/app/model/layer.weight": MODEL,
    "/app/optim/state/layer.weight/exp_avg": OPTIMIZER,
    "/best_model/layer.weight": MODEL,
    "/best_state_dict/layer.weight": MODEL,
    "/iteration": OTHER,
    "/~states[0]/_modules/0/~states[0]/_parameters/weight": MODEL,
}
VALUES = {
    # nanoGPT
    "/model_args/n_layer": OTHER,
    "/iter_num": OTHER,
    "/best_val_loss": OTHER,
    "/config/optimizer": OTHER,
    "/config/seed": OTHER,
    "/optimizer/param_groups[0]/lr": OPTIMIZER,
    # Lightning
    "/epoch": OTHER,
    "/global_step": OTHER,
    "/lr_schedulers[0]/base_lrs[0]": OTHER,
    "/optimizer_states[0]/param_groups[0]/betas[0]": OPTIMIZER,
    "/hyper_parameters/optimizer/lr": OTHER,
    # timm, DiT, detectron2, mmengine
    "/arch": OTHER,
    "/args/opt": OTHER,
    "/opt_level": OTHER,
    "/opt/lr": OTHER,
    "/opt/state": OPTIMIZER,
    "/opt/param_groups[0]/lr": OPTIMIZER,
    "/scheduler/last_epoch": OTHER,
    "/meta/seed": RANDOM,
    # names that tell of a part and are none
    "/model_name": OTHER,
    "/optimizer": OTHER,
    "/ema_decay": OTHER,
    "/model/num_updates": MODEL,
    "/seed": RANDOM,
    "/rng/python[1][0]": RANDOM,
    "": OTHER,
}


@each_row(("path", "part"), TENSORS.items())
def test_a_tensor_belongs_where_a_person_expects_it(path: str, part: str) -> None:
    assert part_of(path, "F32", tensor=True) == part


@each_row(("path", "part"), VALUES.items())
def test_a_value_belongs_where_a_person_expects_it(path: str, part: str) -> None:
    assert part_of(path, "int", tensor=False) == part


def test_a_whole_saved_model_belongs_to_the_model() -> None:
    assert part_of("/model", "object", tensor=False) == MODEL
    assert part_of("/model/~states[0]/training", "bool", tensor=False) == MODEL
