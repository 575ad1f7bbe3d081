#include "h5_objects.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "octet/base/error.h"

#if __has_include(<H5FDdevelop.h>)
#include <H5FDdevelop.h>  // where newer versions of libhdf5 declare drivers
#endif

namespace octet::checkpoint {
namespace {

thread_local SparseImage* next_image = nullptr;

struct File {
  H5FD_t base;  // the part that libhdf5 uses; it must come first
  SparseImage* image;
  haddr_t end_of_allocation;
};

const File& file_of(const H5FD_t* file) {
  return *reinterpret_cast<const File*>(file);
}
File& file_of(H5FD_t* file) {
  return *reinterpret_cast<File*>(file);
}

H5FD_t* open_image(const char*, unsigned, hid_t, haddr_t) {
  auto* file = new (std::nothrow) File{};
  if (file == nullptr) return nullptr;
  file->image = next_image;
  return &file->base;
}

herr_t close_image(H5FD_t* file) {
  delete &file_of(file);
  return 0;
}

herr_t query(const H5FD_t*, unsigned long* flags) {
  *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_AGGREGATE_SMALLDATA;
  return 0;
}

herr_t read_image(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t offset, size_t size, void* out) {
  file_of(file).image->read(static_cast<std::int64_t>(offset), static_cast<char*>(out),
                            static_cast<std::int64_t>(size));
  return 0;
}

// Called by C code, so it must not throw.
herr_t write_image(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t offset, size_t size, const void* bytes) {
  try {
    file_of(file).image->write(static_cast<std::int64_t>(offset), static_cast<const char*>(bytes),
                               static_cast<std::int64_t>(size));
    return 0;
  } catch (const std::exception&) {
    return -1;
  }
}

herr_t truncate_image(H5FD_t* file, hid_t, hbool_t) {
  file_of(file).image->size = static_cast<std::int64_t>(file_of(file).end_of_allocation);
  return 0;
}

const H5FD_class_t& driver_class() {
  static const H5FD_class_t driver = [] {
    H5FD_class_t d{};
#ifdef H5FD_CLASS_VERSION
    d.version = H5FD_CLASS_VERSION;
    d.value = static_cast<H5FD_class_value_t>(H5_VFD_RESERVED + 77);
#endif
    d.name = "octet_sparse_image";
    d.maxaddr = static_cast<haddr_t>(INT64_MAX);
    d.fc_degree = H5F_CLOSE_STRONG;
    d.open = open_image;
    d.close = close_image;
    d.query = query;
    d.get_eoa = [](const H5FD_t* file, H5FD_mem_t) { return file_of(file).end_of_allocation; };
    d.set_eoa = [](H5FD_t* file, H5FD_mem_t, haddr_t end) -> herr_t {
      file_of(file).end_of_allocation = end;
      return 0;
    };
    d.get_eof = [](const H5FD_t* file, H5FD_mem_t) {
      return static_cast<haddr_t>(file_of(file).image->size);
    };
    d.read = read_image;
    d.write = write_image;
    d.truncate = truncate_image;
    const H5FD_mem_t map[] = H5FD_FLMAP_DICHOTOMY;
    std::copy(std::begin(map), std::end(map), d.fl_map);
    return d;
  }();
  return driver;
}

}  // namespace

void SparseImage::write(std::int64_t offset, const char* bytes, std::int64_t count) {
  size = std::max(size, offset + count);
  while (count > 0) {
    const std::int64_t inside = offset % kPage;
    const std::int64_t n = std::min(count, kPage - inside);
    auto& page = pages_[offset - inside];
    if (!page) page = std::make_unique<Page>(Page{});
    std::memcpy(page->data() + inside, bytes, static_cast<std::size_t>(n));
    offset += n;
    bytes += n;
    count -= n;
  }
}

void SparseImage::read(std::int64_t offset, char* bytes, std::int64_t count) const {
  while (count > 0) {
    const std::int64_t inside = offset % kPage;
    const std::int64_t n = std::min(count, kPage - inside);
    const auto it = pages_.find(offset - inside);
    if (it == pages_.end()) {
      std::memset(bytes, 0, static_cast<std::size_t>(n));
    } else {
      std::memcpy(bytes, it->second->data() + inside, static_cast<std::size_t>(n));
    }
    offset += n;
    bytes += n;
    count -= n;
  }
}

hid_t access_to(SparseImage& image) {
  static const hid_t driver = H5FDregister(&driver_class());
  next_image = &image;
  const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
  if (access >= 0 && (driver < 0 || H5Pset_driver(access, driver, nullptr) < 0)) {
    H5Pclose(access);
    return H5I_INVALID_HID;
  }
  return access;
}

namespace {

constexpr hsize_t kAlignment = 4096;  ///< pages
/// Datasets of this size or more begin on page boundaries. Smaller ones are stored one after another, because
/// alignment would enlarge them considerably.
constexpr hsize_t kAligned = 128 << 10;

/// Returns the size of metadata blocks. On average half of the last block is unused, so large blocks are used
/// only for many datasets.
hsize_t metadata_block(std::size_t datasets) {
  constexpr std::size_t kLeast = 2 << 10, kMost = 256 << 10, kEach = 64;
  return std::clamp(kEach * datasets, kLeast, kMost);
}

hid_t created_links() {
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  const hid_t links = H5Pcreate(H5P_LINK_CREATE);
  good(H5Pset_char_encoding(links, H5T_CSET_UTF8), "encoding");
  return links;
}

/// Disables modification times, because they would make equal contents differ.
hid_t created_without_times(hid_t kind) {
  const hid_t list = H5Pcreate(kind);
  good(H5Pset_obj_track_times(list, false), "times");
  return list;
}

hid_t created_storage() {
  const hid_t storage = created_without_times(H5P_DATASET_CREATE);
  good(H5Pset_layout(storage, H5D_CONTIGUOUS), "layout");
  good(H5Pset_alloc_time(storage, H5D_ALLOC_TIME_EARLY), "allocation");
  good(H5Pset_fill_time(storage, H5D_FILL_TIME_NEVER), "fill");
  return storage;
}

hid_t created_file(SparseImage& image, std::size_t datasets) {
  const Handle access(access_to(image), H5Pclose, "file access");
  good(H5Pset_alignment(access, kAligned, kAlignment), "alignment");
  good(H5Pset_meta_block_size(access, metadata_block(datasets)), "metadata block size");
  // Object headers of version 1.8 have checksums, and all readers since 2008 support them.
  good(H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_V18), "format version");
  const Handle creation(created_without_times(H5P_FILE_CREATE), H5Pclose,
                        "file creation");  // for the root group
  return H5Fcreate("layout", H5F_ACC_TRUNC, creation, access);
}

}  // namespace

std::mutex& hdf5_mutex() {
  static std::mutex mutex;
  return mutex;
}

std::string hdf5_reason() {
  std::string text = "libhdf5 gave no reason";
  const H5E_walk2_t take = [](unsigned, const H5E_error2_t* e, void* out) -> herr_t {
    if (e->desc) *static_cast<std::string*>(out) = e->desc;
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, take, &text);
  return text;
}

hid_t good(hid_t id, const std::string& what) {
  if (id < 0)
    throw Error({.what = "libhdf5 refused a call",
                 .found = hdf5_reason(),
                 .where = what,
                 .fix = "check whether the disk is full, and read the output of dmesg"});
  return id;
}

hid_t small_float(std::size_t bytes, std::size_t exponent_bits, std::size_t mantissa_bits) {
  const hid_t type = good(H5Tcopy(H5T_IEEE_F32LE), "float type");
  const std::size_t bits = 8 * bytes;
  good(H5Tset_fields(type, bits - 1, mantissa_bits, exponent_bits, 0, mantissa_bits), "float fields");
  good(H5Tset_size(type, bytes), "float size");
  good(H5Tset_ebias(type, (std::size_t{1} << (exponent_bits - 1)) - 1), "float bias");
  return type;
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

FileInMemory::FileInMemory(SparseImage& image, std::size_t datasets)
    : links_(created_links(), H5Pclose, "links"),
      groups_(created_without_times(H5P_GROUP_CREATE), H5Pclose, "groups"),
      storage_(created_storage(), H5Pclose, "datasets"),
      file_(created_file(image, datasets), H5Fclose, "file in memory") {}

void FileInMemory::add_group(const std::string& path) {
  const Handle created(H5Gcreate2(file_, path.c_str(), links_, groups_, H5P_DEFAULT), H5Gclose, path);
}

std::int64_t FileInMemory::add_dataset(const std::string& path, hid_t type,
                                       const std::vector<std::int64_t>& shape, const char* dtype_attribute) {
  std::vector<hsize_t> extents(shape.begin(), shape.end());
  const Handle space(extents.empty()
                         ? H5Screate(H5S_SCALAR)
                         : H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr),
                     H5Sclose, path);
  const Handle dataset(H5Dcreate2(file_, path.c_str(), type, space, links_, storage_, H5P_DEFAULT), H5Dclose,
                       path);
  if (dtype_attribute) add_text(dataset, "dtype", dtype_attribute);
  const haddr_t offset = H5Dget_offset(dataset);
  if (std::find(extents.begin(), extents.end(), hsize_t{0}) != extents.end()) return 0;
  if (offset == HADDR_UNDEF)
    throw Error({.what = "libhdf5 allocated no space for a dataset",
                 .where = path,
                 .fix = "check whether the disk is full, and read the output of dmesg"});
  return static_cast<std::int64_t>(offset);
}

}  // namespace octet::checkpoint
