// Rehearses a step on every rank before the first step. So code is loaded, attention is planned and
// algorithms are chosen while no rank waits for another within a step.
#pragma once

#include <functional>
#include <string>

#include "octet/comm/job.h"
#include "octet/train/engine.h"

namespace octet::train {

/// One rank's part of rehearse().
struct Rehearsal {
  /// Text of everything that determines the fastest algorithms on this rank's device; empty if none are
  /// chosen.
  std::string kind;
  /// Runs the work of a step and makes missing choices. May throw Error.
  std::function<void()> run;
  /// Returns the choices of run(), as text for other ranks of this kind. Called after run().
  std::function<std::string()> choices;
  /// Applies the choices of another rank, before run(). May throw Error.
  std::function<void(const std::string&)> learn;
  /// Disables further choices. Called at the end, on all ranks of any kind.
  std::function<void()> close;
};

/// The lowest rank of each kind runs first, concurrently with other kinds. The other ranks of the kind take
/// its choices and then run. So each candidate is timed once, and not while ranks of the same kind time.
/// Later steps time nothing, because all ranks would wait. Ranks without a kind run at once. Collective; an
/// Error on any rank is thrown on all (Channel::together).
void rehearse(comm::Channel& channel, const Rehearsal& rehearsal);

/// Rehearses the steps of an engine with loaded parameters. No effect for a single rank, because its first
/// step does the same. No effect on CPUs, where nothing is loaded or chosen.
void rehearse(comm::Job& job, Device& device, Engine& engine);

}  // namespace octet::train
