// The reference of preferences before the first step: its log-probabilities of all answers.
#pragma once

#include <string>
#include <vector>

#include "octet/data/encoded.h"
#include "octet/runtime/instance.h"
#include "run_context.h"
#include "sizing/sizing.h"

namespace octet::train {

/// Computes the log-probabilities with a separate model, which is freed before the engine is built. They are
/// stored in reference.h5 of the output folder, for restarts. All functions are collective.
class References {
 public:
  /// All must outlive the object.
  References(RunContext& run, RunParts& parts, const Sizing& sizing)
      : run_(run), parts_(parts), sizing_(sizing) {}

  /// Throws Error (usage) if ref_model is no model with the tokens of this run.
  void check_model() const;
  /// Sets the references of the training and evaluation data (Encoded::references), from the file or from the
  /// model. Does nothing if the run needs none.
  void prepare();

 private:
  /// Whether the run reads log-probabilities that are computed before its first step.
  bool is_needed() const;
  std::string folder() const;
  /// Whether the reference is the model of train_from_scratch before its first step.
  bool has_random_weights() const;
  /// Returns a hash of the tokens, of the weights of the reference, and of its configuration.
  std::string key() const;
  /// Takes the log-probabilities from the file on all ranks. Returns false if there is no undamaged file with
  /// the key of this run.
  bool read();
  void write() const;
  void compute();
  runtime::InstanceOptions options() const;
  std::string path() const { return run_.config.output_dir + "/reference.h5"; }

  RunContext& run_;
  RunParts& parts_;
  const Sizing& sizing_;
  std::string key_;  ///< of this run, set by read()
};

}  // namespace octet::train
