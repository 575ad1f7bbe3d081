// Lists that only grow and may be larger than memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/files.h"

namespace octet {

/// Bytes in an unnamed file below TMPDIR, mapped for reading and writing: the kernel evicts unused pages.
/// Disk space is allocated before it is written to, so a full disk is an Error and not a signal.
class UnnamedFile {
 public:
  UnnamedFile() = default;
  ~UnnamedFile();
  UnnamedFile(const UnnamedFile&) = delete;
  UnnamedFile& operator=(const UnnamedFile&) = delete;

  std::byte* data() const { return data_; }
  std::size_t capacity() const { return capacity_; }
  /// Grows to this many bytes. The contents stay, at another address. Throws Error on a full disk.
  void grow(std::size_t capacity);
  /// Evicts the first `bytes` from this process's memory. Later accesses read them from the file again.
  void put_away(std::size_t bytes);
  /// Returns the path below /proc, the device and the inode. With these, other processes of this user on this
  /// machine find the file while this object lives.
  std::string address() const;

 private:
  int descriptor_ = -1;
  std::byte* data_ = nullptr;
  std::size_t capacity_ = 0;
  std::size_t away_ = 0;
};

/// Whether an address still leads to its file. False after the file's end, and on another machine or in
/// another container.
bool is_shared_file(const std::string& address);
/// Maps the file at an address. Throws Error if it is shorter than `bytes` bytes, or no longer exists.
std::shared_ptr<const MappedFile> map_shared_file(const std::string& address, std::size_t bytes);

/// A list of plain values. Short lists are in memory, long ones in an UnnamedFile, or in a file of another
/// owner (view). Copies own their values.
template <typename T>
class LongArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  using value_type = T;
  static constexpr std::size_t kInMemory = (std::size_t{32} << 20) / sizeof(T);

  LongArray() = default;
  LongArray(std::initializer_list<T> values) { append(std::span<const T>(values.begin(), values.size())); }
  /// Lists longer than `in_memory` values are in a file.
  explicit LongArray(std::size_t in_memory) : in_memory_(in_memory) {}
  LongArray(const LongArray& other) : in_memory_(other.in_memory_) { append(other.span()); }
  LongArray(LongArray&& other) noexcept { swap(other); }
  LongArray& operator=(LongArray other) noexcept {
    swap(other);
    return *this;
  }
  ~LongArray() = default;

  /// Returns a view of `values`, which point into `file`.
  static LongArray view(std::shared_ptr<const MappedFile> file, std::span<const T> values) {
    LongArray out;
    out.viewed_ = std::move(file);
    out.data_ = const_cast<T*>(values.data());  // never written through: make_room copies first
    out.size_ = values.size();
    return out;
  }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const T* data() const { return data_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  const T& operator[](std::size_t i) const { return data_[i]; }
  const T& front() const { return data_[0]; }
  const T& back() const { return data_[size_ - 1]; }
  std::span<const T> span() const { return {data_, size_}; }
  bool operator==(const LongArray& other) const { return std::ranges::equal(span(), other.span()); }

  void push_back(const T& value) {
    const T copy = value;  // may be an element of this list
    make_room(size_ + 1);
    data_[size_++] = copy;
  }
  /// Appends values, which must not be elements of this list. Throws Error on a full disk.
  void append(std::span<const T> values) {
    make_room(size_ + values.size());
    std::ranges::copy(values, data_ + size_);
    size_ += values.size();
  }
  /// Makes the list longer; the values beyond the present ones are zero.
  void resize(std::size_t size) {
    check(size >= size_, "a list only grows");
    make_room(size);  // the space after the last value was never written to
    size_ = size;
  }
  /// For writing in place; not of a view.
  std::span<T> writable() {
    make_room(size_);
    return {data_, size_};
  }
  /// UnnamedFile::address of the file with the values; "" if they are in memory or a view.
  std::string address() const { return file_ ? file_->address() : ""; }

 private:
  void swap(LongArray& other) noexcept {
    std::swap(in_memory_, other.in_memory_);
    std::swap(memory_, other.memory_);
    std::swap(file_, other.file_);
    std::swap(viewed_, other.viewed_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

  // Makes room for `size` values. A view becomes a copy first.
  void make_room(std::size_t size) {
    if (viewed_) {
      const LongArray old = std::move(*this);
      *this = LongArray(old.in_memory_);
      make_room(std::max(size, old.size_));
      append(old.span());
    }
    if (!file_ && size <= in_memory_) {
      if (size > memory_.size()) {
        memory_.resize(std::min(in_memory_, std::max(size, memory_.size() * 2)));
        data_ = memory_.data();
      }
      return;
    }
    check(size <= SIZE_MAX / 2 / sizeof(T), "a list's bytes can be counted");
    if (!file_) {
      auto file = std::make_unique<UnnamedFile>();
      file->grow(size * sizeof(T));
      std::copy(data_, data_ + size_, reinterpret_cast<T*>(file->data()));
      file_ = std::move(file);
      memory_ = {};
    }
    if (size * sizeof(T) > file_->capacity()) {
      file_->put_away(size_ * sizeof(T));
      file_->grow(size * sizeof(T));
    }
    data_ = reinterpret_cast<T*>(file_->data());
  }

  std::size_t in_memory_ = kInMemory;
  std::vector<T> memory_;
  std::unique_ptr<UnnamedFile> file_;
  std::shared_ptr<const MappedFile> viewed_;
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

/// The first `size` values of the file at an address.
template <typename T>
LongArray<T> view_shared_file(const std::string& address, std::size_t size) {
  auto file = map_shared_file(address, size * sizeof(T));
  const std::span<const T> values(reinterpret_cast<const T*>(file->bytes().data()), size);
  return LongArray<T>::view(std::move(file), values);
}

}  // namespace octet
