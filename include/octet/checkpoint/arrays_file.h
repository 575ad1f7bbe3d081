// Small HDF5 files of named arrays with attributes, as other programs read them (h5py, h5dump).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace octet::checkpoint {

/// Elements as they lie in the file, little-endian. f16 is IEEE half.
enum class ArrayType : std::uint8_t { u32, i64, f16, f32 };

/// Bytes of one element.
std::int64_t size_of(ArrayType type);

/// An element of f16: `x`, no NaN, rounded to nearest even once, not to float first; beyond the largest
/// finite number, 65504, that number. Once: on the way through float the last bit keeps whether anything was
/// cut off (round to odd; Boldo & Melquiond 2008, "Emulation of FMA and correctly rounded sums").
std::uint16_t rounded_to_f16(double x);

struct Array {
  ArrayType type = ArrayType::f32;
  std::vector<std::int64_t> shape;  ///< row-major; extents may be 0
  std::string bytes;                ///< all elements
};

/// The contents of a file: arrays beside one another, and attributes of the whole.
struct ArraysFile {
  std::map<std::string, Array> arrays;  ///< by name, without '/'
  std::map<std::string, std::string> texts;
  std::map<std::string, std::int64_t> numbers;
};

/// The bytes of an HDF5 file of these contents; equal contents give equal bytes. Arrays lie contiguous.
/// Throws Error for a name or an attribute that HDF5 cannot hold, and std::logic_error for an array whose
/// bytes are not those of its shape.
std::string arrays_file_bytes(const ArraysFile& contents);

/// What arrays_file_bytes() made `bytes` from; datasets and attributes of other types are left out. Throws
/// Error (usage) naming `path` for bytes that are no HDF5 file, and for a file that is cut short or damaged.
ArraysFile read_arrays_file(const std::string& bytes, const std::string& path);

}  // namespace octet::checkpoint
