// Small HDF5 files of named arrays with attributes, readable by other programs (h5py, h5dump).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace octet::checkpoint {

/// Element types in the file, little-endian. f16 is IEEE half.
enum class ArrayType : std::uint8_t { u32, i64, f16, f32, f64 };

/// Returns the bytes of one element.
std::int64_t size_of(ArrayType type);

/// Returns `x` as f16, rounded once to nearest even. `x` must not be NaN. Values beyond the largest finite
/// number, 65504, are clamped to it. Rounding to float first would round twice. The intermediate float
/// therefore keeps in its last bit whether bits were cut off (round to odd; Boldo & Melquiond 2008,
/// "Emulation of FMA and correctly rounded sums").
std::uint16_t rounded_to_f16(double x);

struct Array {
  ArrayType type = ArrayType::f32;
  std::vector<std::int64_t> shape;  ///< row-major; extents may be 0
  std::string bytes;                ///< all elements
};

/// The contents of a file: arrays, and attributes of the root group.
struct ArraysFile {
  std::map<std::string, Array> arrays;  ///< by name, without '/'
  std::map<std::string, std::string> texts;
  std::map<std::string, std::int64_t> numbers;
};

/// Returns an HDF5 file with these contents; equal contents give equal bytes. Arrays are stored contiguously.
/// Throws Error for a name or an attribute that HDF5 cannot hold. Throws std::logic_error if an array's bytes
/// do not match its shape.
std::string arrays_file_bytes(const ArraysFile& contents);

/// Returns the contents of an HDF5 file, like those passed to arrays_file_bytes(). Datasets and attributes of
/// other types are left out. Throws Error (usage) naming `path` if `bytes` are not an HDF5 file, or are
/// truncated or damaged.
ArraysFile read_arrays_file(const std::string& bytes, const std::string& path);

}  // namespace octet::checkpoint
