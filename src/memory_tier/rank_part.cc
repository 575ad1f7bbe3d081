#include "rank_part.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/strings.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/checkpoint/coverage.h"
#include "octet/checkpoint/manifest.h"
#include "octet/checkpoint/packer.h"
#include "octet/files/file_io.h"

namespace octet::memory_tier {
namespace {

constexpr std::int64_t kPartAlignment = 64;
constexpr char kMagic[8] = {'o', 'c', 't', 'e', 't', 'm', 'e', 'm'};
constexpr std::int64_t kVersion = 1;
constexpr std::int64_t kMostHeader = INT64_C(1) << 32;

/// The fields of the first page.
struct Page {
  char magic[8];
  std::int64_t version;
  std::int64_t header_bytes;
  std::int64_t file_bytes;
  char header_hash[32];
  std::uint64_t hash;  ///< hash of the earlier fields
};
static_assert(sizeof(Page) <= kPartPage);

std::uint64_t hash_of(const Page& page) {
  return hash64({reinterpret_cast<const char*>(&page), offsetof(Page, hash)});
}

std::int64_t up(std::int64_t value, std::int64_t to) {
  return (value + to - 1) / to * to;
}

std::string_view text_of(const std::byte* bytes, std::int64_t size) {
  return {reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size)};
}

[[noreturn]] void damaged_part(const std::string& what, const std::string& where) {
  throw Error({.what = what,
               .where = where,
               .fix = "the memory of this host may be faulty: read its log (dmesg, edac-util)",
               .code = ExitCode::no_valid_checkpoint});
}

// Throws Error for a slice outside its tensor, or with a byte count that overflows.
void require_possible(const PartSlice& slice) {
  check(slice.tensor.dtype <= DType::boolean, "the dtype of the tensor is known");
  weights::byte_count(slice.tensor);
  check_inside({.name = slice.tensor.name,
                .dtype = slice.tensor.dtype,
                .shape = slice.tensor.shape,
                .begin = slice.begin,
                .count = slice.count,
                .rows = slice.rows,
                .stride = slice.stride,
                .pitch = slice.count});
}

std::vector<PartSlice> slices_of(const std::string& description) {
  std::vector<PartSlice> slices;
  for (checkpoint::Unpacker unpacker(description); !unpacker.done();) {
    PartSlice& slice = slices.emplace_back();
    slice.tensor = unpacker.header();
    slice.begin = unpacker.number(), slice.count = unpacker.number();
    slice.rows = unpacker.number(), slice.stride = unpacker.number();
    require_possible(slice);
    slice.bytes = slice.elements() * static_cast<std::int64_t>(size_of(slice.tensor.dtype));
  }
  return slices;
}

// Sets the offsets of values and hashes of the slices. `at`: the end of the header. Throws Error if the
// offsets overflow.
std::int64_t place(std::vector<PartSlice>& slices, std::int64_t at) {
  constexpr std::int64_t kMost = INT64_C(1) << 62;
  std::size_t chunk = 0;
  for (PartSlice& slice : slices) {
    slice.offset = at = up(at, kPartAlignment);
    slice.first_chunk = chunk;
    check(slice.bytes <= kMost - at, "the slices of a part fit a file");
    at += slice.bytes;
    chunk += static_cast<std::size_t>(checkpoint::chunk_count(slice.bytes));
  }
  return at;
}

std::size_t chunks_of(const std::vector<PartSlice>& slices) {
  std::size_t chunks = 0;
  for (const PartSlice& slice : slices)
    chunks += static_cast<std::size_t>(checkpoint::chunk_count(slice.bytes));
  return chunks;
}

std::int64_t values_at(const std::string& header) {
  return up(kPartPage + static_cast<std::int64_t>(header.size()), kPartPage);
}

}  // namespace

std::string packed(const PartHeader& header) {
  const PartFacts& facts = header.facts;
  checkpoint::Packer packer;
  packer.text(facts.identity).text(facts.taken).number(facts.step).number(facts.zero_stage);
  packer.number(facts.world).number(facts.rank).text(facts.host).text(facts.state).text(facts.config);
  packer.text(header.description);
  for (const std::uint64_t chunk : header.chunks) packer.number(static_cast<std::int64_t>(chunk));
  return packer.packed();
}

PartHeader unpacked(std::string_view text, const std::string& where) {
  PartHeader header;
  try {
    checkpoint::Unpacker unpacker(text);
    PartFacts& facts = header.facts;
    facts.identity = unpacker.text(), facts.taken = unpacker.text();
    facts.step = unpacker.number(), facts.zero_stage = static_cast<int>(unpacker.number());
    facts.world = static_cast<int>(unpacker.number()), facts.rank = static_cast<int>(unpacker.number());
    facts.host = unpacker.text(), facts.state = unpacker.text(), facts.config = unpacker.text();
    header.description = unpacker.text();
    header.slices = slices_of(header.description);
    while (!unpacker.done()) header.chunks.push_back(static_cast<std::uint64_t>(unpacker.number()));
    header.file_bytes = place(header.slices, values_at(std::string(text)));
  } catch (const std::exception& e) {
    damaged_part(std::string("a checkpoint in memory has a header that cannot be read: ") + e.what(), where);
  }
  if (header.facts.world < 1 || header.facts.rank < 0 || header.facts.rank >= header.facts.world ||
      header.facts.step < 0 || chunks_of(header.slices) != header.chunks.size())
    damaged_part("a checkpoint in memory has a header that contradicts itself", where);
  return header;
}

PartHeader lay_part_out(PartFacts facts, const std::vector<TensorSlice>& slices) {
  PartHeader header{
      .facts = std::move(facts), .description = checkpoint::describe(slices), .slices = {}, .chunks = {}};
  header.slices = slices_of(header.description);
  header.chunks.resize(chunks_of(header.slices));
  header.file_bytes = place(header.slices, values_at(packed(header)));
  return header;
}

PartMemory::PartMemory(std::string path, int fd, std::size_t size, bool writes)
    : path_(std::move(path)), size_(size) {
  void* data = ::mmap(nullptr, size_, writes ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) files::file_error("cannot map memory for a checkpoint", path_, errno);
  data_ = static_cast<std::byte*>(data);
  watched_ = WatchedMapping(data_, size_, fd, path_, WatchedMapping::Loss::hashed);
}

PartMemory::~PartMemory() {
  watched_ = {};
  if (data_ != nullptr) ::munmap(data_, size_);
}

PartMemory::PartMemory(PartMemory&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      watched_(std::move(other.watched_)) {}

PartMemory& PartMemory::operator=(PartMemory&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(watched_, other.watched_);
  return *this;
}

PartMemory PartMemory::make(const std::string& path, std::int64_t bytes) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
  if (fd < 0) files::file_error("cannot make memory for a checkpoint", path, errno);
  const files::Descriptor file(fd);
  // Clears the page first, so that the old contents are invalid even if a later step fails.
  const char none[sizeof(Page)] = {};
  if (::pwrite(fd, none, sizeof none, 0) < 0 || ::ftruncate(fd, bytes) != 0)
    files::file_error("cannot make memory for a checkpoint", path, errno);
  // Allocates the memory now: an access to memory that cannot be allocated later would kill the process.
  const int code = ::posix_fallocate(fd, 0, bytes);
  if (code != 0) {
    throw Error({.what = "the host has no memory for a checkpoint",
                 .expected = human_bytes(static_cast<double>(bytes)) + " more",
                 .found = std::strerror(code),
                 .where = path,
                 .fix = "leave memory_checkpoint_steps out, or enlarge the memory file system",
                 .code = ExitCode::storage});
  }
  return PartMemory(path, fd, static_cast<std::size_t>(bytes), true);
}

PartMemory PartMemory::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) files::file_error("cannot open a checkpoint in memory", path, errno);
  const files::Descriptor file(fd);
  struct stat st {};
  if (::fstat(fd, &st) != 0) files::file_error("cannot read a checkpoint in memory", path, errno);
  if (!S_ISREG(st.st_mode) || st.st_uid != ::geteuid())
    damaged_part("a checkpoint in memory is not a regular file of this user", path);
  if (st.st_size < kPartPage) damaged_part("a checkpoint in memory was cut short", path);
  return PartMemory(path, fd, static_cast<std::size_t>(st.st_size), false);
}

namespace {

/// A chunk of a slice: 1 MiB of its values, or the rest.
struct Chunk {
  std::size_t slice = 0;
  std::int64_t number = 0;
};

std::vector<Chunk> all_chunks(const PartHeader& header) {
  std::vector<Chunk> chunks;
  for (std::size_t i = 0; i < header.slices.size(); ++i) {
    for (std::int64_t c = 0; c < checkpoint::chunk_count(header.slices[i].bytes); ++c)
      chunks.push_back({i, c});
  }
  return chunks;
}

std::int64_t bytes_of(const PartSlice& slice, const Chunk& chunk) {
  return std::min(checkpoint::kChunkBytes, slice.bytes - chunk.number * checkpoint::kChunkBytes);
}

// Copies bytes [from, from + size) of the densely packed slice.
void pack(const TensorSlice& slice, std::int64_t from, std::int64_t size, std::byte* out) {
  const auto* data = static_cast<const std::byte*>(slice.data);
  if (slice.dense()) {
    std::memcpy(out, data + from, static_cast<std::size_t>(size));
    return;
  }
  const auto width = static_cast<std::int64_t>(size_of(slice.dtype));
  const std::int64_t row_bytes = slice.count * width;
  while (size > 0) {
    const std::int64_t row = from / row_bytes, inside = from % row_bytes;
    const std::int64_t some = std::min(size, row_bytes - inside);
    std::memcpy(out, data + row * slice.pitch * width + inside, static_cast<std::size_t>(some));
    out += some, from += some, size -= some;
  }
}

}  // namespace

void copy_values(PartMemory& memory, PartHeader& header, const std::vector<TensorSlice>& slices) {
  check(header.slices.size() == slices.size() &&
            static_cast<std::size_t>(header.file_bytes) <= memory.bytes().size(),
        "a part was made for these slices");
  std::byte* base = memory.bytes().data();
  std::memset(base, 0, kPartPage);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const std::vector<Chunk> chunks = all_chunks(header);
  const auto count = static_cast<std::int64_t>(chunks.size());
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < count; ++i) {
    const Chunk& chunk = chunks[static_cast<std::size_t>(i)];
    const PartSlice& slice = header.slices[chunk.slice];
    const TensorSlice& source = slices[chunk.slice];
    const std::int64_t from = chunk.number * checkpoint::kChunkBytes, size = bytes_of(slice, chunk);
    std::byte* to = base + slice.offset + from;
    pack(source, from, size, to);
    // Hashes the source if it is contiguous, so that seal_part() detects a wrong copy.
    const std::byte* hashed = source.dense() ? static_cast<const std::byte*>(source.data) + from
                                             : static_cast<const std::byte*>(to);
    header.chunks[slice.first_chunk + static_cast<std::size_t>(chunk.number)] = hash64(text_of(hashed, size));
    if (i == count / 2) files::failpoint("mid_memory");
  }
}

void verify_values(const PartMemory& memory, const PartHeader& header) {
  if (static_cast<std::size_t>(header.file_bytes) > memory.bytes().size())
    damaged_part("a checkpoint in memory was cut short", memory.path());
  for (const Chunk& chunk : all_chunks(header)) {
    const PartSlice& slice = header.slices[chunk.slice];
    const std::int64_t from = chunk.number * checkpoint::kChunkBytes, size = bytes_of(slice, chunk);
    const std::uint64_t hash = hash64(text_of(memory.bytes().data() + slice.offset + from, size));
    if (hash == header.chunks[slice.first_chunk + static_cast<std::size_t>(chunk.number)]) continue;
    damaged_part("a checkpoint in memory is damaged: a hash does not match",
                 memory.path() + ", tensor '" + slice.tensor.name + "', bytes " +
                     std::to_string(slice.offset + from) + " to " +
                     std::to_string(slice.offset + from + size));
  }
}

void seal_part(PartMemory& memory, const PartHeader& header) {
  files::failpoint("before_memory_seal");
  verify_values(memory, header);
  const std::string text = packed(header);
  std::byte* base = memory.bytes().data();
  std::memcpy(base + kPartPage, text.data(), text.size());
  Page page{};
  std::memcpy(page.magic, kMagic, sizeof kMagic);
  page.version = kVersion;
  page.header_bytes = static_cast<std::int64_t>(text.size());
  page.file_bytes = header.file_bytes;
  const std::string hash = hash128_hex(text);
  std::memcpy(page.header_hash, hash.data(), sizeof page.header_hash);
  page.hash = hash_of(page);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::memcpy(base, &page, sizeof page);
}

namespace {

// Returns the header that a first page describes, or nothing if the page is empty.
std::optional<PartHeader> header_of(const Page& page, const PartMemory& memory) {
  const Page none{};
  if (std::memcmp(&page, &none, sizeof page) == 0) return std::nullopt;
  if (std::memcmp(page.magic, kMagic, sizeof kMagic) != 0 || page.hash != hash_of(page))
    damaged_part("the first page of a checkpoint in memory is damaged", memory.path());
  if (page.version != kVersion)
    damaged_part("a checkpoint in memory has another format version: " + std::to_string(page.version),
                 memory.path());
  const auto size = static_cast<std::int64_t>(memory.bytes().size());
  if (page.header_bytes < 0 || page.header_bytes > std::min(kMostHeader, size - kPartPage) ||
      page.file_bytes > size)
    damaged_part("a checkpoint in memory was cut short", memory.path());
  const std::string_view text = text_of(memory.bytes().data() + kPartPage, page.header_bytes);
  if (hash128_hex(text) != std::string_view(page.header_hash, sizeof page.header_hash))
    damaged_part("the header of a checkpoint in memory is damaged: its hash does not match", memory.path());
  return unpacked(text, memory.path());
}

Page page_in(std::span<const std::byte> bytes) {
  Page page{};
  std::memcpy(&page, bytes.data(), sizeof page);
  return page;
}

}  // namespace

void seal_copy(PartMemory& memory, std::span<const std::byte> page) {
  check(page.size() == static_cast<std::size_t>(kPartPage), "a part begins with a page");
  const auto header = header_of(page_in(page), memory);
  if (!header) damaged_part("a checkpoint in memory came without its first page", memory.path());
  verify_values(memory, *header);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::memcpy(memory.bytes().data(), page.data(), page.size());
}

std::optional<PartHeader> read_header(const PartMemory& memory) {
  return header_of(page_in(memory.bytes()), memory);
}

}  // namespace octet::memory_tier
