#include "h5_layout.h"

#include <hdf5.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>

#include "file_io.h"
#include "octet/base/error.h"
#include "octet/base/strings.h"

namespace octet::checkpoint {
namespace {

constexpr hsize_t kAlignment = 4096;  ///< pages
/// Datasets of this size or more begin on pages of their own; smaller ones, which pages would make larger by
/// a part worth speaking of, lie one behind the other.
constexpr hsize_t kAligned = 128 << 10;

// Some builds of libhdf5 are not thread-safe, and ranks may be threads of one process.
std::mutex& library() {
  static std::mutex mutex;
  return mutex;
}

std::string deepest_message() {
  std::string text = "libhdf5 gave no reason";
  const H5E_walk2_t take = [](unsigned, const H5E_error2_t* e, void* out) -> herr_t {
    if (e->desc) *static_cast<std::string*>(out) = e->desc;
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, take, &text);
  return text;
}

hid_t good(hid_t id, const std::string& what) {
  if (id < 0) throw Error({.what = "cannot lay out an HDF5 file", .found = deepest_message(), .where = what});
  return id;
}

// An identifier that closes itself.
class Handle {
 public:
  Handle(hid_t id, herr_t (*closer)(hid_t), const std::string& what) : id_(good(id, what)), close_(closer) {}
  ~Handle() {
    if (id_ >= 0) close_(id_);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  operator hid_t() const { return id_; }
  void close(const std::string& what) { good(close_(std::exchange(id_, -1)), what); }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

// An IEEE-like float that HDF5 has no name for.
hid_t small_float(std::size_t bytes, std::size_t exponent_bits, std::size_t mantissa_bits) {
  const hid_t type = good(H5Tcopy(H5T_IEEE_F32LE), "float type");
  const std::size_t bits = 8 * bytes;
  good(H5Tset_fields(type, bits - 1, mantissa_bits, exponent_bits, 0, mantissa_bits), "float fields");
  good(H5Tset_size(type, bytes), "float size");
  good(H5Tset_ebias(type, (std::size_t{1} << (exponent_bits - 1)) - 1), "float bias");
  return type;
}

hid_t h5_type(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return small_float(2, 8, 7);
    case DType::f16:
      return small_float(2, 5, 10);
    case DType::e5m2:
      return small_float(1, 5, 2);
    case DType::f32:
      return H5Tcopy(H5T_IEEE_F32LE);
    case DType::f64:
      return H5Tcopy(H5T_IEEE_F64LE);
    case DType::i64:
      return H5Tcopy(H5T_STD_I64LE);
    case DType::i32:
      return H5Tcopy(H5T_STD_I32LE);
    case DType::i16:
      return H5Tcopy(H5T_STD_I16LE);
    case DType::i8:
      return H5Tcopy(H5T_STD_I8LE);
    case DType::e4m3:  // HDF5 takes the top exponent for infinities, which E4M3 has not: codes instead
    case DType::u8:
    case DType::boolean:
      return H5Tcopy(H5T_STD_U8LE);
  }
  return H5I_INVALID_HID;
}

hid_t string_type(std::size_t bytes) {
  const hid_t type = good(H5Tcopy(H5T_C_S1), "string type");
  good(H5Tset_size(type, bytes), "string size");
  good(H5Tset_cset(type, H5T_CSET_UTF8), "string encoding");
  good(H5Tset_strpad(type, H5T_STR_NULLPAD), "string padding");
  return type;
}

void add_text(hid_t object, const char* name, const std::string& value) {
  const Handle space(H5Screate(H5S_SCALAR), H5Sclose, name);
  const Handle type(string_type(std::max<std::size_t>(value.size(), 1)), H5Tclose, name);
  const Handle attribute(H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose, name);
  good(H5Awrite(attribute, type, value.data()), name);
}

void add_number(hid_t object, const char* name, std::int64_t value) {
  const Handle space(H5Screate(H5S_SCALAR), H5Sclose, name);
  const Handle attribute(H5Acreate2(object, name, H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose,
                         name);
  good(H5Awrite(attribute, H5T_NATIVE_INT64, &value), name);
}

struct Place {
  hid_t file;
  hid_t links;    ///< names are UTF-8
  hid_t groups;   ///< without modification times
  hid_t storage;  ///< contiguous, allocated early, not filled
};

/// Creates the groups that a dataset stands in, where they are not there: `made` has the paths of those that
/// are. (libhdf5 would do so itself, but with the time of day in each.)
void add_groups(const Place& place, const std::string& path, std::set<std::string>& made) {
  for (std::size_t end = path.find('/', 1); end != std::string::npos; end = path.find('/', end + 1)) {
    const std::string group = path.substr(0, end);
    if (!made.insert(group).second) continue;
    const Handle created(H5Gcreate2(place.file, group.c_str(), place.links, place.groups, H5P_DEFAULT),
                         H5Gclose, group);
  }
}

std::int64_t add_dataset(const Place& place, const std::string& path, hid_t type,
                         const std::vector<std::int64_t>& shape, const char* dtype_attribute) {
  std::vector<hsize_t> extents(shape.begin(), shape.end());
  const Handle space(extents.empty()
                         ? H5Screate(H5S_SCALAR)
                         : H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr),
                     H5Sclose, path);
  const Handle dataset(
      H5Dcreate2(place.file, path.c_str(), type, space, place.links, place.storage, H5P_DEFAULT), H5Dclose,
      path);
  if (dtype_attribute) add_text(dataset, "dtype", dtype_attribute);
  const haddr_t offset = H5Dget_offset(dataset);
  if (std::find(extents.begin(), extents.end(), hsize_t{0}) != extents.end()) return 0;
  if (offset == HADDR_UNDEF) throw Error({.what = "libhdf5 gave a dataset no place", .where = path});
  return static_cast<std::int64_t>(offset);
}

void check_path(const std::string& path, std::set<std::string>& paths) {
  for (const auto& part : split(std::string_view(path).substr(1), '/')) {
    if (part.empty() || part == "." || part == ".." || part.find('\0') != std::string::npos ||
        !is_utf8(part)) {
      throw Error({.what = "a tensor's name cannot stand in an HDF5 file",
                   .expected = "UTF-8 without empty parts between '/'",
                   .found = path});
    }
  }
  if (path == "/state" || path == "/config" || !paths.insert(path).second)
    throw Error({.what = "two tensors have the same place in an HDF5 file", .found = path});
}

}  // namespace

std::string dataset_path(const std::string& tensor_name) {
  if (tensor_name.find('/') == std::string::npos) return "/parameters/" + tensor_name;
  if (tensor_name.starts_with("exp_avg/") || tensor_name.starts_with("exp_avg_sq/"))
    return "/optimizer/" + tensor_name;
  return "/" + tensor_name;
}

std::int64_t layout_bound(const LayoutRequest& request) {
  std::int64_t bound = 1 << 20;
  const auto add = [&bound](std::int64_t bytes) {
    if (__builtin_add_overflow(bound, bytes, &bound))
      throw Error("a checkpoint of this size cannot be written");
  };
  add(request.state_bytes);
  add(request.config_bytes);
  for (const auto& tensor : request.tensors) {
    add(byte_count(tensor));
    add(static_cast<std::int64_t>(kAlignment) + 2048 + 8 * static_cast<std::int64_t>(tensor.name.size()));
  }
  return bound;
}

namespace {

/// Metadata lie together in blocks, the last of which stays half empty: large ones for many datasets alone.
hsize_t metadata_block(std::size_t datasets) {
  constexpr std::size_t kLeast = 2 << 10, kMost = 256 << 10, kEach = 64;
  return std::clamp(kEach * datasets, kLeast, kMost);
}

}  // namespace

FileLayout lay_out(const LayoutRequest& request) {
  const std::lock_guard<std::mutex> lock(library());
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  FileLayout layout;
  const Handle access(access_to(layout.image), H5Pclose, "file access");
  good(H5Pset_alignment(access, kAligned, kAlignment), "alignment");
  good(H5Pset_meta_block_size(access, metadata_block(request.tensors.size())), "metadata block size");
  // Object headers of 1.8 carry checksums, and every reader since 2008 knows them.
  good(H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_V18), "format version");
  const Handle links(H5Pcreate(H5P_LINK_CREATE), H5Pclose, "links");
  good(H5Pset_char_encoding(links, H5T_CSET_UTF8), "encoding");
  const Handle storage(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, "datasets");
  good(H5Pset_layout(storage, H5D_CONTIGUOUS), "layout");
  good(H5Pset_alloc_time(storage, H5D_ALLOC_TIME_EARLY), "allocation");
  good(H5Pset_fill_time(storage, H5D_FILL_TIME_NEVER), "fill");
  // Without modification times, which would only make equal contents look different.
  const Handle groups(H5Pcreate(H5P_GROUP_CREATE), H5Pclose, "groups");
  const Handle creation(H5Pcreate(H5P_FILE_CREATE), H5Pclose, "file creation");  // of the root group, too
  for (const Handle* each : {&storage, &groups, &creation}) {
    good(H5Pset_obj_track_times(*each, false), "times");
  }

  Handle file(H5Fcreate("layout", H5F_ACC_TRUNC, creation, access), H5Fclose, "file in memory");
  {
    const Handle root(H5Gopen2(file, "/", H5P_DEFAULT), H5Gclose, "root");
    add_text(root, "format", "octet checkpoint");
    add_number(root, "version", 1);
    add_number(root, "step", request.step);
    add_number(root, "world", request.world);
    add_number(root, "zero_stage", request.zero_stage);
  }
  const Place place{file, links, groups, storage};
  const auto add_string = [&place](const char* path, std::int64_t bytes) {
    const Handle type(string_type(static_cast<std::size_t>(bytes)), H5Tclose, path);
    return add_dataset(place, path, type, {}, nullptr);
  };
  layout.state_offset = add_string("/state", request.state_bytes);
  layout.config_offset = add_string("/config", request.config_bytes);
  std::set<std::string> paths, made;
  for (const auto& tensor : request.tensors) {
    const std::string path = dataset_path(tensor.name);
    check_path(path, paths);
    add_groups(place, path, made);
    const bool plain = tensor.dtype != DType::e4m3 && tensor.dtype != DType::e5m2 &&
                       tensor.dtype != DType::bf16 && tensor.dtype != DType::boolean;
    const Handle type(h5_type(tensor.dtype), H5Tclose, path);
    layout.offsets.push_back(add_dataset(place, path, type, tensor.shape,
                                         plain ? nullptr : std::string(name_of(tensor.dtype)).c_str()));
  }
  file.close("file in memory");

  layout.file_bytes = layout.image.size;
  return layout;
}

void copy_image(const FileLayout& layout, int fd, const std::string& path) {
  for (const auto& [offset, page] : layout.image.pages()) {
    write_at(fd, path, page->data(), std::min(SparseImage::kPage, layout.file_bytes - offset), offset);
  }
}

}  // namespace octet::checkpoint
