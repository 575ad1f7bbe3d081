// Parquet and Arrow files, if the program was built with Apache Arrow.
#include "octet/base/error.h"
#include "row_readers.h"

#ifdef OCTET_HAVE_ARROW

#include <arrow/api.h>
#include <arrow/io/api.h>
#include <arrow/ipc/api.h>
#include <parquet/arrow/reader.h>

#include <list>
#include <mutex>
#include <vector>

#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"

namespace octet::data {
namespace {

using Batches = std::vector<std::shared_ptr<arrow::RecordBatch>>;

[[noreturn]] void refuse(const std::string& path, const std::string& found) {
  throw Error({.what = "a Parquet or Arrow file cannot be read",
               .expected = "Parquet, or Arrow's file or stream format",
               .found = found,
               .where = path,
               .fix = "write it again, or convert it to JSON lines",
               .code = ExitCode::usage});
}

void require(const arrow::Status& status, const std::string& path) {
  if (!status.ok()) refuse(path, status.ToString());
}

template <typename T>
T value_of(arrow::Result<T> result, const std::string& path) {
  require(result.status(), path);
  return std::move(result).ValueUnsafe();
}

Json cell(const arrow::Array& array, std::int64_t i, const std::string& where, int depth = 0);

template <typename List>
Json list_cell(const arrow::Array& array, std::int64_t i, const std::string& where, int depth) {
  const auto& list = static_cast<const List&>(array);
  Json out = Json::array();
  for (std::int64_t k = 0; k < list.value_length(i); ++k) {
    out.push_back(cell(*list.values(), list.value_offset(i) + k, where, depth + 1));
  }
  return out;
}

template <typename Number>
Json number_cell(const arrow::Array& array, std::int64_t i) {
  return static_cast<const Number&>(array).Value(i);
}

template <typename Text>
Json text_cell(const arrow::Array& array, std::int64_t i, const std::string& where) {
  std::string text(static_cast<const Text&>(array).GetView(i));
  if (!is_utf8(text)) refuse(where, "a text that is not UTF-8");
  return text;
}

// Stands for a value of a type without a JSON form. Only rows that read this value are refused.
Json unreadable() {
  return Json::binary({});
}

// Old writers do not mark byte columns as text. Bytes that are not UTF-8, such as images, are unreadable().
template <typename Bytes>
Json bytes_cell(const arrow::Array& array, std::int64_t i) {
  std::string bytes(static_cast<const Bytes&>(array).GetView(i));
  return is_utf8(bytes) ? Json(std::move(bytes)) : unreadable();
}

// Returns one value as JSON. Times and decimals become text. Types that no text data set uses become
// unreadable().
Json cell(const arrow::Array& array, std::int64_t i, const std::string& where, int depth) {
  if (depth > 64) refuse(where, "values nested too deeply");
  if (array.IsNull(i)) return nullptr;
  switch (array.type_id()) {
    case arrow::Type::STRING:
      return text_cell<arrow::StringArray>(array, i, where);
    case arrow::Type::LARGE_STRING:
      return text_cell<arrow::LargeStringArray>(array, i, where);
    case arrow::Type::BOOL:
      return static_cast<const arrow::BooleanArray&>(array).Value(i);
    case arrow::Type::INT8:
      return number_cell<arrow::Int8Array>(array, i);
    case arrow::Type::INT16:
      return number_cell<arrow::Int16Array>(array, i);
    case arrow::Type::INT32:
      return number_cell<arrow::Int32Array>(array, i);
    case arrow::Type::INT64:
      return number_cell<arrow::Int64Array>(array, i);
    case arrow::Type::UINT8:
      return number_cell<arrow::UInt8Array>(array, i);
    case arrow::Type::UINT16:
      return number_cell<arrow::UInt16Array>(array, i);
    case arrow::Type::UINT32:
      return number_cell<arrow::UInt32Array>(array, i);
    case arrow::Type::UINT64:
      return number_cell<arrow::UInt64Array>(array, i);
    case arrow::Type::FLOAT:
      return number_cell<arrow::FloatArray>(array, i);
    case arrow::Type::DOUBLE:
      return number_cell<arrow::DoubleArray>(array, i);
    case arrow::Type::LIST:
      return list_cell<arrow::ListArray>(array, i, where, depth);
    case arrow::Type::LARGE_LIST:
      return list_cell<arrow::LargeListArray>(array, i, where, depth);
    case arrow::Type::DICTIONARY: {
      const auto& coded = static_cast<const arrow::DictionaryArray&>(array);
      return cell(*coded.dictionary(), coded.GetValueIndex(i), where, depth + 1);
    }
    case arrow::Type::STRUCT: {
      const auto& record = static_cast<const arrow::StructArray&>(array);
      Json out = Json::object();
      for (int f = 0; f < record.num_fields(); ++f) {
        // field(f) is already cut to the record's own range.
        out[record.type()->field(f)->name()] = cell(*record.field(f), i, where, depth + 1);
      }
      return out;
    }
    case arrow::Type::BINARY:
      return bytes_cell<arrow::BinaryArray>(array, i);
    case arrow::Type::LARGE_BINARY:
      return bytes_cell<arrow::LargeBinaryArray>(array, i);
    case arrow::Type::DATE32:
    case arrow::Type::DATE64:
    case arrow::Type::TIME32:
    case arrow::Type::TIME64:
    case arrow::Type::TIMESTAMP:
    case arrow::Type::DECIMAL128:
    case arrow::Type::DECIMAL256:
      return value_of(array.GetScalar(i), where)->ToString();
    default:
      return unreadable();
  }
}

Json row_of(const arrow::RecordBatch& batch, std::int64_t i, const std::string& where) {
  Json out = Json::object();
  for (int c = 0; c < batch.num_columns(); ++c) out[batch.column_name(c)] = cell(*batch.column(c), i, where);
  return out;
}

// Maps a row to its part: a batch of an Arrow file, or a row group of a Parquet file.
class ColumnReader : public RowReader {
 public:
  explicit ColumnReader(std::string path) : path_(std::move(path)) {}
  std::int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }
  std::string where(std::int64_t i) const override { return path_ + " row " + std::to_string(i + 1); }

  const std::string& path() const override { return path_; }

 protected:
  void add_part(std::int64_t rows) {
    if (rows < 0) refuse(path_, "a negative number of rows");
    ends_.push_back(size() + rows);
  }
  std::size_t part_of(std::int64_t i) const {
    return static_cast<std::size_t>(std::ranges::upper_bound(ends_, i) - ends_.begin());
  }
  std::int64_t begin_of(std::size_t part) const { return part == 0 ? 0 : ends_[part - 1]; }

 private:
  std::string path_;
  std::vector<std::int64_t> ends_;
};

// Wraps the mapped bytes for Arrow, without a copy.
std::shared_ptr<arrow::io::RandomAccessFile> file_of(const MappedFile& map) {
  const std::string_view text = map.text();
  return std::make_shared<arrow::io::BufferReader>(std::make_shared<arrow::Buffer>(
      reinterpret_cast<const std::uint8_t*>(text.data()), static_cast<std::int64_t>(text.size())));
}

class ArrowReader : public ColumnReader {
 public:
  explicit ArrowReader(const std::string& path) : ColumnReader(path), map_(path) {
    auto file = file_of(map_);
    const auto magic = value_of(file->ReadAt(0, 6), path);
    if (magic->size() == 6 && std::string_view(*magic) == "ARROW1") {
      const auto reader = value_of(arrow::ipc::RecordBatchFileReader::Open(file), path);
      for (int b = 0; b < reader->num_record_batches(); ++b) {
        keep(value_of(reader->ReadRecordBatch(b), path));
      }
      return;
    }
    const auto reader = value_of(arrow::ipc::RecordBatchStreamReader::Open(file), path);
    for (;;) {
      std::shared_ptr<arrow::RecordBatch> batch;
      require(reader->ReadNext(&batch), path);
      if (!batch) break;
      keep(std::move(batch));
    }
  }
  Json row(std::int64_t i) const override {
    const std::size_t part = part_of(i);
    return row_of(*batches_.at(part), i - begin_of(part), where(i));
  }

 private:
  // The buffers of the batch point into the mapped file, so they are validated before the first read.
  void keep(std::shared_ptr<arrow::RecordBatch> batch) {
    require(batch->ValidateFull(), path());
    add_part(batch->num_rows());
    batches_.push_back(std::move(batch));
  }
  MappedFile map_;
  Batches batches_;
};

class ParquetReader : public ColumnReader {
 public:
  explicit ParquetReader(const std::string& path) : ColumnReader(path), map_(path) {
    auto file = file_of(map_);
    reader_ = value_of(parquet::arrow::OpenFile(std::move(file), arrow::default_memory_pool()), path);
    for (int g = 0; g < reader_->num_row_groups(); ++g) {
      add_part(reader_->parquet_reader()->metadata()->RowGroup(g)->num_rows());
    }
  }
  Json row(std::int64_t i) const override {
    const std::size_t part = part_of(i);
    const auto batch = group(part);
    return row_of(*batch, i - begin_of(part), where(i));
  }

 private:
  // Decodes the row group `part` on demand. The four most recently used groups are cached.
  std::shared_ptr<arrow::RecordBatch> group(std::size_t part) const {
    constexpr std::size_t kKept = 4;
    const std::lock_guard lock(mutex_);
    for (auto it = kept_.begin(); it != kept_.end(); ++it) {
      if (it->first != part) continue;
      kept_.splice(kept_.begin(), kept_, it);
      return it->second;
    }
    const auto table = value_of(reader_->ReadRowGroup(static_cast<int>(part)), path());
    require(table->ValidateFull(), path());
    kept_.emplace_front(part, value_of(table->CombineChunksToBatch(), path()));
    if (kept_.front().second->num_rows() != (begin_of(part + 1) - begin_of(part))) {
      refuse(path(), "a row group with another number of rows than it declares");
    }
    if (kept_.size() > kKept) kept_.pop_back();
    return kept_.front().second;
  }
  MappedFile map_;
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  mutable std::mutex mutex_;
  mutable std::list<std::pair<std::size_t, std::shared_ptr<arrow::RecordBatch>>> kept_;
};

}  // namespace

std::unique_ptr<RowReader> open_columns(const std::string& path, const std::string& ending) {
  try {
    if (ending == "parquet") return std::make_unique<ParquetReader>(path);
    return std::make_unique<ArrowReader>(path);
  } catch (const parquet::ParquetException& e) {
    refuse(path, e.what());
  }
}

}  // namespace octet::data

#else

namespace octet::data {

std::unique_ptr<RowReader> open_columns(const std::string& path, const std::string& ending) {
  const std::string read = ending == "parquet" ? "pandas.read_parquet" : "pandas.read_feather";
  throw Error({.what = "this program was built without Apache Arrow, which reads ." + ending + " files",
               .where = path,
               .fix = "convert the file: python3 -c \"import pandas; " + read + "('" + path +
                      "').to_json('rows.jsonl', orient='records', lines=True)\"; or build again with "
                      "-DOCTET_ARROW=ON, which fetches Apache Arrow with pip",
               .code = ExitCode::usage});
}

}  // namespace octet::data

#endif
