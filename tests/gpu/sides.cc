#include "gpu/sides.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace octet::ops {
namespace {

Device& gpu() {
  static const std::unique_ptr<Device> device = make_cuda_device(0);
  return *device;
}
Device& host() {
  static const std::unique_ptr<Device> device = make_cpu_device();
  return *device;
}

bool near(const Side::Output& o, double cpu, double gpu_value, const Within& within) {
  if (std::isnan(cpu) || std::isnan(gpu_value)) return std::isnan(cpu) && std::isnan(gpu_value);
  if (cpu == gpu_value) return true;
  double room = within.relative * std::abs(cpu) + within.absolute;
  if (o.dtype == DType::bf16) room += within.bf16_steps * 0x1p-7 * std::abs(cpu);
  return std::abs(cpu - gpu_value) <= room;  // false for an infinity against any other value
}

void compare(const Side::Output& cpu, const Side::Output& on_gpu, const Within& within) {
  const bool bits = within.relative == 0 && within.absolute == 0 && within.bf16_steps == 0;
  if (bits || cpu.dtype == DType::u8) {
    for (std::size_t i = 0; i < cpu.bytes.size(); ++i) {
      ASSERT_EQ(static_cast<int>(cpu.bytes[i]), static_cast<int>(on_gpu.bytes[i]))
          << cpu.name << ": byte " << i << " of " << cpu.bytes.size();
    }
    return;
  }
  int wrong = 0;
  for (std::int64_t r = 0; r < cpu.rows; ++r) {
    for (std::int64_t c = 0; c < cpu.cols; ++c) {
      const double x = cpu.at(r, c), y = on_gpu.at(r, c);
      if (near(cpu, x, y, within)) continue;
      ADD_FAILURE() << cpu.name << " [" << cpu.rows << ", " << cpu.cols << "] at (" << r << ", " << c
                    << "): CPU " << x << ", GPU " << y;
      if (++wrong == 5) FAIL() << cpu.name << ": and maybe more";
    }
    const std::size_t size = size_of(cpu.dtype);
    const auto begin = static_cast<std::size_t>(r * cpu.ld + cpu.cols) * size;
    const auto end = static_cast<std::size_t>((r + 1) * cpu.ld) * size;
    ASSERT_EQ(std::memcmp(cpu.bytes.data() + begin, on_gpu.bytes.data() + begin, end - begin), 0)
        << cpu.name << ": the margin of row " << r << " was written";
  }
}

}  // namespace

double Side::Output::at(std::int64_t r, std::int64_t c) const {
  const std::byte* from = bytes.data() + static_cast<std::size_t>(r * ld + c) * size_of(dtype);
  const auto read = [&]<typename T>(T value) {
    std::memcpy(&value, from, sizeof(T));
    return value;
  };
  switch (dtype) {
    case DType::f32:
      return static_cast<double>(read(float{}));
    case DType::bf16:
      return static_cast<double>(from_bf16(read(std::uint16_t{})));
    case DType::f64:
      return read(double{});
    default:
      return static_cast<double>(static_cast<int>(*from));
  }
}

void both(const std::function<void(Side&)>& body, const Within& within) {
  Side cpu(host()), first(gpu()), second(gpu());
  body(cpu);
  body(first);
  body(second);
  ASSERT_EQ(cpu.outputs().size(), first.outputs().size());
  ASSERT_FALSE(cpu.outputs().empty()) << "a test without outputs holds nothing";
  for (std::size_t i = 0; i < cpu.outputs().size(); ++i) {
    compare(cpu.outputs()[i], first.outputs()[i], within);
    EXPECT_EQ(first.outputs()[i].bytes, second.outputs()[i].bytes)
        << cpu.outputs()[i].name << ": two runs gave different bits";
  }
}

}  // namespace octet::ops

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (GTEST_FLAG_GET(list_tests)) return RUN_ALL_TESTS();
  std::string why_not;
  if (!octet::cuda_available(0, &why_not)) {
    std::fprintf(stderr, "gpu_tests: nothing was tested: %s\n", why_not.c_str());
    return 77;  // ctest counts this as skipped
  }
  // Tests make their own timed choices and write no cache.
  ::setenv("OCTETRUN_CACHE", "off", 1);
  std::printf("%s\n", octet::make_cuda_device(0)->description().c_str());
  return RUN_ALL_TESTS();
}
