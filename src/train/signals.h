// What the user asks of a running job by signals. Handlers only set flags; the loop looks at them between
// steps.
#pragma once

namespace octet::train {

/// Installs the handlers for its lifetime.
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  /// SIGUSR1 came since the last call.
  bool take_save();
  /// SIGTERM, SIGINT or SIGUSR2 came.
  bool stop() const;
};

}  // namespace octet::train
