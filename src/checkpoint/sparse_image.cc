#include "sparse_image.h"

#if __has_include(<H5FDdevelop.h>)
#include <H5FDdevelop.h>  // where newer versions of libhdf5 declare drivers
#endif

#include <algorithm>
#include <cstring>
#include <exception>

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

}  // namespace octet::checkpoint
