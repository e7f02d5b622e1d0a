# SPDX-License-Identifier: Apache-2.0
"""Alone, use, or join: what a hospital should do, from one federated regression. docs/decision.md

Read in this order: ``regression`` (the models), ``estimands`` (loss differences and their variances), ``heterogeneity``
(what other hospitals add), ``validation`` (calibration, net benefit, sample size), ``verdicts`` (rules and detectors),
``decide`` (all of it for one federation), ``study`` (a task, its files and its page).
"""
