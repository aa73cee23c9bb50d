# Adds kvrail to Mooncake's store; scripts/dev mooncake has mooncake-store/src include it.
# KVRAIL_LIBRARY is the path of libkvrail.a.
set(KVRAIL_SOURCES ${CMAKE_CURRENT_LIST_DIR}/src/kvrail_storage_backend.cpp
                   ${CMAKE_CURRENT_LIST_DIR}/src/session.cpp)
set_source_files_properties(${KVRAIL_SOURCES} PROPERTIES COMPILE_OPTIONS
                                                         -Wno-missing-field-initializers)
target_sources(mooncake_store_client_objects PRIVATE ${KVRAIL_SOURCES})
target_include_directories(
  mooncake_store_client_objects PRIVATE ${CMAKE_CURRENT_LIST_DIR}/src
                                        ${CMAKE_CURRENT_LIST_DIR}/../../c/include)
target_link_libraries(mooncake_store PRIVATE ${KVRAIL_LIBRARY})
