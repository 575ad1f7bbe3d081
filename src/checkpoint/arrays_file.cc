#include "octet/checkpoint/arrays_file.h"

#include <hdf5.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <string_view>

#include "h5_objects.h"
#include "octet/base/dtype.h"
#include "octet/base/error.h"

namespace octet::checkpoint {
namespace {

constexpr std::string_view kSignature("\x89HDF\r\n\x1a\n", 8);
constexpr int kMostExtents = 8;

hid_t created_type(ArrayType type) {
  switch (type) {
    case ArrayType::u32:
      return H5Tcopy(H5T_STD_U32LE);
    case ArrayType::i64:
      return H5Tcopy(H5T_STD_I64LE);
    case ArrayType::f16:
      return small_float(2, 5, 10);
    case ArrayType::f32:
      return H5Tcopy(H5T_IEEE_F32LE);
    case ArrayType::f64:
      return H5Tcopy(H5T_IEEE_F64LE);
  }
  return H5I_INVALID_HID;
}

/// Returns the bytes of an array of this shape, or nullopt if they overflow or an extent is negative.
std::optional<std::int64_t> byte_count(ArrayType type, const std::vector<std::int64_t>& shape) {
  std::int64_t count = size_of(type);
  for (const std::int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(count, extent, &count)) return std::nullopt;
  }
  return count;
}

[[noreturn]] void damaged_arrays(const std::string& path, const std::string& reason) {
  throw Error({.what = "an HDF5 file is cut short or damaged",
               .found = reason,
               .where = path,
               .fix = "fetch or write the file again",
               .code = ExitCode::usage});
}

/// Reads the contents of an open file. All functions throw Error if libhdf5 fails.
class Reader {
 public:
  Reader(hid_t file, std::int64_t file_bytes) : file_(file), file_bytes_(file_bytes) {}

  ArraysFile read() {
    each_link([this](const std::string& name) { read_array(name); });
    each_attribute([this](const std::string& name) { read_attribute(name); });
    return std::move(contents_);
  }

 private:
  using Visit = std::function<void(const std::string&)>;

  // Collects the names first, because exceptions must not propagate through libhdf5.
  void each_link(const Visit& visit) {
    std::vector<std::string> names;
    const auto note = [](hid_t, const char* name, const H5L_info_t*, void* out) -> herr_t {
      static_cast<std::vector<std::string>*>(out)->emplace_back(name);
      return 0;
    };
    good(H5Literate(file_, H5_INDEX_NAME, H5_ITER_INC, nullptr, note, &names), "/");
    for (const std::string& name : names) visit(name);
  }
  void each_attribute(const Visit& visit) {
    std::vector<std::string> names;
    const auto note = [](hid_t, const char* name, const H5A_info_t*, void* out) -> herr_t {
      static_cast<std::vector<std::string>*>(out)->emplace_back(name);
      return 0;
    };
    good(H5Aiterate2(file_, H5_INDEX_NAME, H5_ITER_INC, nullptr, note, &names), "/");
    for (const std::string& name : names) visit(name);
  }

  void read_array(const std::string& name) {
    const Handle object(H5Oopen(file_, name.c_str(), H5P_DEFAULT), H5Oclose, name);
    if (H5Iget_type(object) != H5I_DATASET) return;
    const Handle type(H5Dget_type(object), H5Tclose, name);
    const Handle space(H5Dget_space(object), H5Sclose, name);
    const int extents = H5Sget_simple_extent_ndims(space);
    if (extents < 1 || extents > kMostExtents) return;
    hsize_t sizes[kMostExtents];
    good(H5Sget_simple_extent_dims(space, sizes, nullptr), name);
    for (const ArrayType known :
         {ArrayType::u32, ArrayType::i64, ArrayType::f16, ArrayType::f32, ArrayType::f64}) {
      const Handle same(created_type(known), H5Tclose, name);
      if (good(H5Tequal(type, same), name) == 0) continue;
      Array array{.type = known, .shape = {}, .bytes = {}};
      for (const hsize_t size : std::vector<hsize_t>(sizes, sizes + extents)) {
        array.shape.push_back(
            size > std::numeric_limits<std::int64_t>::max() ? -1 : static_cast<std::int64_t>(size));
      }
      const auto bytes = byte_count(known, array.shape);
      if (!bytes || *bytes > file_bytes_)
        throw Error({.what = "an array is larger than its file",
                     .found = name,
                     .where = name,
                     .fix = "fetch or write the file again: it is damaged"});
      array.bytes.resize(static_cast<std::size_t>(*bytes));
      if (*bytes > 0) good(H5Dread(object, same, H5S_ALL, H5S_ALL, H5P_DEFAULT, array.bytes.data()), name);
      contents_.arrays.emplace(name, std::move(array));
    }
  }

  void read_attribute(const std::string& name) {
    const Handle attribute(H5Aopen(file_, name.c_str(), H5P_DEFAULT), H5Aclose, name);
    const Handle type(H5Aget_type(attribute), H5Tclose, name);
    const Handle space(H5Aget_space(attribute), H5Sclose, name);
    if (H5Sget_simple_extent_npoints(space) != 1) return;
    if (H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) == 0) {
      const std::size_t size = H5Tget_size(type);
      if (static_cast<std::int64_t>(size) > file_bytes_)
        throw Error({.what = "an attribute is larger than its file",
                     .found = name,
                     .where = name,
                     .fix = "fetch or write the file again: it is damaged"});
      std::string text(size, '\0');
      good(H5Aread(attribute, type, text.data()), name);
      text.resize(std::min(text.size(), text.find('\0')));  // strip the padding
      contents_.texts.emplace(name, std::move(text));
    } else if (H5Tget_class(type) == H5T_INTEGER) {
      std::int64_t number = 0;
      good(H5Aread(attribute, H5T_NATIVE_INT64, &number), name);
      contents_.numbers.emplace(name, number);
    }
  }

  hid_t file_;
  std::int64_t file_bytes_;
  ArraysFile contents_;
};

}  // namespace

std::int64_t size_of(ArrayType type) {
  return type == ArrayType::i64 || type == ArrayType::f64 ? 8 : type == ArrayType::f16 ? 2 : 4;
}

std::uint16_t rounded_to_f16(double x) {
  constexpr double kLargest = 65504.0;
  x = std::clamp(x, -kLargest, kLargest);
  auto f = static_cast<float>(x);
  if (static_cast<double>(f) != x) {
    if (std::abs(static_cast<double>(f)) > std::abs(x)) f = std::nextafter(f, 0.0f);
    f = std::bit_cast<float>(std::bit_cast<std::uint32_t>(f) | 1u);
  }
  return to_f16(f);
}

std::string arrays_file_bytes(const ArraysFile& contents) {
  const std::lock_guard<std::mutex> lock(hdf5_mutex());
  SparseImage image;
  FileInMemory file(image, contents.arrays.size());
  {
    const Handle root(H5Gopen2(file, "/", H5P_DEFAULT), H5Gclose, "root");
    for (const auto& [name, text] : contents.texts) add_text(root, name.c_str(), text);
    for (const auto& [name, number] : contents.numbers) add_number(root, name.c_str(), number);
  }
  std::map<std::string, std::int64_t> offsets;
  for (const auto& [name, array] : contents.arrays) {
    check(byte_count(array.type, array.shape) == std::ssize(array.bytes), "an array has its shape's bytes");
    const Handle type(created_type(array.type), H5Tclose, name);
    offsets[name] = file.add_dataset("/" + name, type, array.shape);
  }
  file.close();
  // libhdf5 has written only the metadata. The elements are copied to their offsets.
  std::string bytes(static_cast<std::size_t>(image.size), '\0');
  image.read(0, bytes.data(), image.size);
  for (const auto& [name, array] : contents.arrays) {
    const auto offset = static_cast<std::size_t>(offsets[name]);
    check(offset + array.bytes.size() <= bytes.size(), "an array lies in its file");
    if (!array.bytes.empty()) std::memcpy(bytes.data() + offset, array.bytes.data(), array.bytes.size());
  }
  return bytes;
}

ArraysFile read_arrays_file(const std::string& bytes, const std::string& path) {
  if (!bytes.starts_with(kSignature)) {
    throw Error({.what = "this is not an HDF5 file",
                 .found = bytes.empty() ? "an empty file" : "other first bytes",
                 .where = path,
                 .fix = "name a file that HDF5 wrote, or fetch it again",
                 .code = ExitCode::usage});
  }
  const std::lock_guard<std::mutex> lock(hdf5_mutex());
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  SparseImage image;
  image.write(0, bytes.data(), std::ssize(bytes));
  try {
    const Handle access(access_to(image), H5Pclose, "file access");
    const Handle file(H5Fopen("image", H5F_ACC_RDONLY, access), H5Fclose, "file");
    return Reader(file, std::ssize(bytes)).read();
  } catch (const Error& e) {
    damaged_arrays(path, e.problem().found);
  }
}

}  // namespace octet::checkpoint
