"""What a LightningModule logs adds up as Lightning's own values of an epoch do."""

from __future__ import annotations

import torch

from src.runtime.torch.lightning.logged import TRAIN, VALIDATION, Logged, fit, weight_in


def test_a_number_is_a_mean_over_samples_or_what_reduce_fx_says() -> None:
    logged = Logged()
    for value, samples in ((1.0, 30.0), (torch.tensor([4.0]), 10.0)):
        logged.add(TRAIN, "mean", value, samples, "mean")
        logged.add(TRAIN, "whole", value, samples, torch.sum)
        logged.add(TRAIN, "largest", value, samples, max)
        logged.add(TRAIN, "least", value, samples, "min")
    logged.add(VALIDATION, "mean", 7, 1, "mean")
    assert logged.take(TRAIN, {}) == {"mean": 1.75, "whole": 5.0, "largest": 4.0, "least": 1.0}
    assert logged.take(TRAIN, {}) == {} and logged.take(VALIDATION, {}) == {"mean": 7.0}


def test_the_loss_of_validation_is_the_first_that_is_called_so() -> None:
    logged = Logged()
    logged.add(VALIDATION, "val_acc", 0.5, 4, "mean")
    assert logged.loss(VALIDATION) is None
    logged.add(VALIDATION, "val_Loss", 3.0, 4, "mean")
    logged.add(VALIDATION, "loss_of_part", 9.0, 4, "mean")
    assert logged.loss(VALIDATION) == (12.0, 4)


def test_an_infinite_value_is_an_empty_one_and_names_are_mlflows() -> None:
    logged = Logged()
    logged.add(TRAIN, "acc@5", float("inf"), 1, "mean")
    assert logged.take(TRAIN, {}) == {"acc_5": None}
    assert fit("loss") == "logged_loss" and fit("val/f1 (macro)") == "val/f1 _macro_"


def test_what_is_logged_once_an_epoch_counts_once() -> None:
    assert weight_in("on_train_epoch_end", 32) == 1
    assert weight_in("training_step", 32) == weight_in("on_train_batch_end", 32) == 32
