// When overlapping collectives with compute is worth the thread switches.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>

#include "octet/comm/thread_ranks.h"
#include "octet/device/cpu.h"

namespace octet::comm::overlap_test {
namespace {

class Overlap : public testing::Test {
 protected:
  Overlap() : threads_(cpu::op_threads()) { unsetenv("OCTETRUN_OVERLAP"); }
  ~Overlap() override {
    cpu::set_op_threads(threads_);
    unsetenv("OCTETRUN_OVERLAP");
  }

  bool hides(int threads, int local_ranks, int nodes = 1) {
    cpu::set_op_threads(threads);
    return overlap_hides(*device_, {.size = local_ranks * nodes, .local_size = local_ranks, .nodes = nodes});
  }

 private:
  int threads_;
  std::unique_ptr<Device> device_ = make_cpu_device({.threads = 1});
};

TEST_F(Overlap, HidesNothingWhereEveryCoreIsTheOnlyOneOfARank) {
  const int cores = cpu::allowed_cores();
  EXPECT_FALSE(hides(1, cores));
  EXPECT_FALSE(hides(1, cores + 1)) << "more ranks than cores";
}

TEST_F(Overlap, HidesSomethingWhereACoreIsSpareOrAMessageLeavesTheNode) {
  const int cores = cpu::allowed_cores();
  if (cores > 1) {
    EXPECT_TRUE(hides(1, cores - 1)) << "a core for messages";
  }
  EXPECT_TRUE(hides(1, cores, 2)) << "the wire needs no core";
  cpu::set_op_threads(2);
  if (cpu::op_threads() != 2) GTEST_SKIP() << "ops run on one thread under the thread sanitizer";
  EXPECT_TRUE(hides(2, cores)) << "while a rank sends, all its cores but one would stand still";
}

TEST_F(Overlap, IsForcedByTheEnvironmentSoThatTestsReachIt) {
  setenv("OCTETRUN_OVERLAP", "always", 1);
  EXPECT_TRUE(hides(1, cpu::allowed_cores()));
  setenv("OCTETRUN_OVERLAP", "true", 1);
  EXPECT_FALSE(hides(1, cpu::allowed_cores()));
}

}  // namespace
}  // namespace octet::comm::overlap_test
