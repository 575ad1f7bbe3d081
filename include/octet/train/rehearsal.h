// Before the first step: every rank tries alone what a step computes, so that code is loaded, attention is
// planned and products are chosen while no rank waits for another within a step.
#pragma once

#include <functional>
#include <string>

#include "octet/comm/job.h"
#include "octet/train/engine.h"

namespace octet::train {

/// What rehearse() asks of a rank.
struct Rehearsal {
  /// In words, what decides which algorithms are fastest on this rank's device; empty where none are chosen.
  std::string kind;
  /// Tries a step's work, and chooses what is not known. May throw Error.
  std::function<void()> run;
  /// What run() chose, as text for other ranks of this kind. Asked for after run().
  std::function<std::string()> choices;
  /// Takes what choices() gave on another rank, before run(). May throw Error.
  std::function<void(const std::string&)> learn;
  /// Chooses nothing from now on: called at the end, on all ranks, whatever their kind.
  std::function<void()> close;
};

/// Of each kind the lowest rank runs first, beside those of the other kinds, and the other ranks of its kind
/// take its choices before they run: what is timed is timed once, and not beside other ranks that do the
/// same. Afterwards nothing is timed any more, for in a step all ranks would wait for one that does. Ranks
/// without a kind run at once. All ranks call it; an Error of one ends it on all (Channel::together).
void rehearse(comm::Channel& channel, const Rehearsal& rehearsal);

/// Rehearses the steps of an engine whose parameters are filled. Does nothing for a lone rank, whose first
/// step does the same, and on CPUs, where nothing is loaded or chosen.
void rehearse(comm::Job& job, Device& device, Engine& engine);

}  // namespace octet::train
