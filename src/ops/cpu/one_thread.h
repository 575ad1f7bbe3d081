// Limits the number of threads of oneDNN.
#pragma once

#include <omp.h>

namespace octet::ops::cpu {

/// oneDNN uses one thread during the lifetime of this object, on the thread that created it.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

}  // namespace octet::ops::cpu
