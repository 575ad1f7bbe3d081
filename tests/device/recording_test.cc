#include "octet/device/device.h"

#include <gtest/gtest.h>

namespace octet::recording_test {
namespace {

TEST(Recording, WhereNothingIsRecordedNothingIsCalled) {
  for (const bool dry : {false, true}) {
    const auto device = dry ? make_dry_device({.stands_for = DeviceKind::cuda}) : make_cpu_device();
    const auto stream = device->make_stream({.name = "compute"});
    EXPECT_FALSE(can_record(*stream));
    EXPECT_EQ(record(*stream, [] { FAIL(); }), nullptr);
  }
}

}  // namespace
}  // namespace octet::recording_test
